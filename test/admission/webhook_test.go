package admission

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
)

// webhookServer is a webhook with TLS.
type webhookServer struct {
	*httptest.Server

	mu       sync.Mutex
	received []admissionv1.AdmissionRequest
}

// serve starts a webhook that returns the responses of respond.
func serve(t *testing.T, respond func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) *webhookServer {
	t.Helper()
	h := &webhookServer{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err != nil || json.Unmarshal(body, &review) != nil || review.Request == nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.received = append(h.received, *review.Request)
		h.mu.Unlock()
		review.Response = respond(review.Request)
		review.Response.UID = review.Request.UID
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *webhookServer) requests() []admissionv1.AdmissionRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.received)
}

func (h *webhookServer) clientConfig() admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{
		URL:      new(h.URL),
		CABundle: harness.CABundle(h.Server),
	}
}

// rules match writes of ConfigMaps and widgets.
func rules() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Delete},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"", "example.com"}, APIVersions: []string{"v1"}, Resources: []string{"configmaps", "widgets"}},
	}}
}

func mutates(name string, config admissionregistrationv1.WebhookClientConfig) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name: name, ClientConfig: config, Rules: rules(),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
}

func validates(name string, config admissionregistrationv1.WebhookClientConfig) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: name, ClientConfig: config, Rules: rules(),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
}

func allow(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

// labels returns patches that add a label.
func labels(value string) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if r.Operation == admissionv1.Delete {
			return &admissionv1.AdmissionResponse{Allowed: true}
		}
		patch := `[{"op":"add","path":"/metadata/labels","value":{"by":"` + value + `"}}]`
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: new(admissionv1.PatchTypeJSONPatch)}
	}
}

func (c *cluster) mutating(t *testing.T, name string, hooks ...admissionregistrationv1.MutatingWebhook) {
	t.Helper()
	_, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (c *cluster) validating(t *testing.T, name string, hooks ...admissionregistrationv1.ValidatingWebhook) {
	t.Helper()
	_, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// untilLabelled waits until new ConfigMaps get the label, or none if it is empty.
func (c *cluster) untilLabelled(t *testing.T, value string) {
	t.Helper()
	eventually(t, "the label "+value+" of ConfigMaps in "+c.name.String(), func() bool {
		obj, err := c.configMap(t.Context(), "probe", nil, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && obj.Labels["by"] == value
	})
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	all := sharedCluster.Get(t)
	both := clusters(t, all, "webhooks-a", "webhooks-b")
	a, b := both[0], both[1]
	a.defineWidgets(t)
	b.defineWidgets(t)

	hookA, hookB := serve(t, labels("a")), serve(t, labels("b"))
	a.mutating(t, "same-name", mutates("label.example.com", hookA.clientConfig()))
	b.mutating(t, "same-name", mutates("label.example.com", hookB.clientConfig()))
	a.untilLabelled(t, "a")
	b.untilLabelled(t, "b")
	for _, in := range both {
		obj, err := in.widget(t.Context(), "w", map[string]any{"of": in.name.String()})
		require.NoError(t, err)
		require.Len(t, obj.GetLabels(), 1)
	}

	t.Run("changes and removal of a configuration are effective", func(t *testing.T) {
		config := harness.Get(t, a.AdmissionregistrationV1().MutatingWebhookConfigurations(), "same-name")
		require.Equal(t, admissionregistrationv1.Fail, *config.Webhooks[0].FailurePolicy, "defaults are missing")
		second := serve(t, labels("second"))
		config.Webhooks[0].ClientConfig = second.clientConfig()
		config, err := a.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(t.Context(), config, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, int64(2), config.Generation)
		a.untilLabelled(t, "second")
		require.NoError(t, a.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "same-name", metav1.DeleteOptions{}))
		a.untilLabelled(t, "")
		b.untilLabelled(t, "b")
	})

	t.Run("validating", func(t *testing.T) {
		deny := serve(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{
				Allowed: r.Name != "forbidden", Warnings: []string{"seen"},
				Result: &metav1.Status{Message: "not that name", Code: http.StatusForbidden},
			}
		})
		a.validating(t, "v", validates("deny.example.com", deny.clientConfig()))
		eventually(t, "the webhook to deny", func() bool { return apierrors.IsForbidden(a.dryRun(t.Context(), "forbidden")) })
		require.ErrorContains(t, a.dryRun(t.Context(), "forbidden"), `admission webhook "deny.example.com" denied the request: not that name`)
		a.warnings.Take()
		require.NoError(t, a.dryRun(t.Context(), "allowed"))
		require.Equal(t, []string{"seen"}, a.warnings.Take())
		_, err := a.widget(t.Context(), "forbidden", nil)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.NoError(t, b.dryRun(t.Context(), "forbidden"), "the webhook of another logical cluster was called")
		require.NoError(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "v", metav1.DeleteOptions{}))
		eventually(t, "the removal of the webhook", func() bool { return a.dryRun(t.Context(), "forbidden") == nil })
		a.warnings.Take()
		require.NoError(t, a.dryRun(t.Context(), "forbidden"))
		require.NotContains(t, a.warnings.Take(), "seen")
	})

	t.Run("selectors and match conditions", func(t *testing.T) {
		deny := serve(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Allowed: false, Result: &metav1.Status{Message: "never"}}
		})
		selected := validates("selected.example.com", deny.clientConfig())
		selected.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "strict"}}
		selected.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "name", Expression: "object.metadata.name.startsWith('x')"}}
		a.validating(t, "s", selected)
		a.createNamespace(t, "strict")
		create := func(namespace, name string) error {
			_, err := a.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		eventually(t, "the webhook to deny", func() bool { return create("strict", "x1") != nil })
		require.NoError(t, create("strict", "y1"))
		require.NoError(t, create("default", "x1"))
		require.NoError(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "s", metav1.DeleteOptions{}))
	})

	t.Run("reinvocation", func(t *testing.T) {
		first, second := serve(t, allow), serve(t, labels("second"))
		again := mutates("a.example.com", first.clientConfig())
		again.ReinvocationPolicy = new(admissionregistrationv1.IfNeededReinvocationPolicy)
		a.mutating(t, "r", again, mutates("b.example.com", second.clientConfig()))
		a.untilLabelled(t, "second")
		before := len(first.requests())
		require.NoError(t, a.dryRun(t.Context(), "once"))
		require.Len(t, first.requests(), before+2, "the first webhook was not reinvoked")
		require.NoError(t, a.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "r", metav1.DeleteOptions{}))
		a.untilLabelled(t, "")
	})

	t.Run("annotation of the logical cluster", func(t *testing.T) {
		receiver := serve(t, allow)
		every := validates("listens.example.com", receiver.clientConfig())
		every.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
		a.validating(t, "l", every)
		eventually(t, "a call of the webhook", func() bool { return a.dryRun(t.Context(), "x") == nil && len(receiver.requests()) > 0 })
		maps := a.CoreV1().ConfigMaps("default")
		other := map[string]string{"kcp.io/cluster": "other"}
		harness.Create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "annotated", Annotations: other}})
		_, err := maps.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "annotated", Annotations: other}, Data: map[string]string{"a": "b"}}, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, maps.Delete(t.Context(), "annotated", metav1.DeleteOptions{}))
		seen := map[admissionv1.Operation]bool{}
		for _, r := range receiver.requests() {
			if r.Name != "annotated" {
				continue
			}
			seen[r.Operation] = true
			for _, raw := range [][]byte{r.Object.Raw, r.OldObject.Raw} {
				if len(raw) > 0 {
					require.Contains(t, string(raw), `"kcp.io/cluster":"`+a.name.String()+`"`, "%s", r.Operation)
				}
			}
		}
		require.Len(t, seen, 3)
		require.NoError(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "l", metav1.DeleteOptions{}))
		eventually(t, "the removal of the webhook", func() bool {
			before := len(receiver.requests())
			return a.dryRun(t.Context(), "x") == nil && len(receiver.requests()) == before
		})
	})

	t.Run("hanging", func(t *testing.T) { hanging(t, a, b) })

	t.Run("invalid", func(t *testing.T) {
		broken := validates("not-qualified", admissionregistrationv1.WebhookClientConfig{URL: new("http://plain.example.com")})
		broken.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "object.("}}
		broken.SideEffects = new(admissionregistrationv1.SideEffectClassSome)
		_, err := a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
			&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{broken}}, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		for _, field := range []string{"webhooks[0].name", "webhooks[0].clientConfig.url", "webhooks[0].matchConditions[0].expression", "webhooks[0].sideEffects"} {
			require.ErrorContains(t, err, field)
		}
	})

	// Each server must have received only objects of its own logical cluster.
	for h, in := range map[*webhookServer]*cluster{hookA: a, hookB: b} {
		require.NotEmpty(t, h.requests())
		for _, r := range h.requests() {
			if r.Kind.Kind == "Widget" {
				require.Contains(t, string(r.Object.Raw), `"of":"`+in.name.String()+`"`)
			}
			if r.Operation == admissionv1.Create {
				require.Contains(t, string(r.Object.Raw), `"kcp.io/cluster":"`+in.name.String()+`"`, "the annotation is missing in a new object")
			}
		}
	}
}

// hanging checks that a webhook without responses delays only its own logical cluster, according to
// its timeout and failure policy.
func hanging(t *testing.T, a, b *cluster) {
	release := make(chan struct{})
	stuck := serve(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		<-release
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	unblock := sync.OnceFunc(func() { close(release) })
	defer unblock()
	hang := validates("hang.example.com", stuck.clientConfig())
	hang.TimeoutSeconds = new(int32(1))
	a.validating(t, "h", hang)
	var err error
	eventually(t, "a call of the webhook", func() bool {
		err = a.dryRun(t.Context(), "x")
		return err != nil
	})
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	require.ErrorContains(t, err, `failed calling webhook "hang.example.com"`)

	change := func(change func(*admissionregistrationv1.ValidatingWebhook)) {
		config := harness.Get(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations(), "h")
		change(&config.Webhooks[0])
		_, err := a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(t.Context(), config, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	change(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.FailurePolicy = new(admissionregistrationv1.Ignore)
	})
	eventually(t, "the failure to be ignored", func() bool { return a.dryRun(t.Context(), "x") == nil })

	require.NoError(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "h", metav1.DeleteOptions{}))

	hang.TimeoutSeconds = new(int32(30))
	a.validating(t, "h2", hang)
	results, started, before := make(chan error, 10000), 0, len(stuck.requests())
	eventually(t, "a write that waits for the webhook", func() bool {
		started++
		go func() { results <- a.dryRun(t.Context(), "x") }()
		return len(stuck.requests()) > before
	})
	require.NoError(t, b.dryRun(t.Context(), "x"))
	require.Less(t, len(results), started, "the other logical cluster was delayed")
	unblock()
	for range started {
		require.NoError(t, <-results)
	}
	require.NoError(t, a.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "h2", metav1.DeleteOptions{}))
}
