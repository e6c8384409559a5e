package apis

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// newWebhook returns a webhook. decide returns fields of the response for an object, which is the old one of a deletion.
func newWebhook(t *testing.T, decide func(operation admissionv1.Operation, object reviewed) string) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var review admissionv1.AdmissionReview
		var object reviewed
		err := json.NewDecoder(request.Body).Decode(&review)
		if err == nil && review.Request.Operation == admissionv1.Delete {
			err = json.Unmarshal(review.Request.OldObject.Raw, &object)
		} else if err == nil {
			err = json.Unmarshal(review.Request.Object.Raw, &object)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,%s}}`, review.Request.UID, decide(review.Request.Operation, object))
	}))
	t.Cleanup(server.Close)
	return server
}

// reviewed contains the fields of an object that webhooks use.
type reviewed struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct{ Size int }
}

// reviewer is a webhook that records the logical cluster in the annotation of each object, and copies it to another annotation.
type reviewer struct {
	*httptest.Server

	mu   sync.Mutex
	seen []string
}

func newReviewer(t *testing.T) *reviewer {
	t.Helper()
	r := &reviewer{}
	r.Server = newWebhook(t, func(_ admissionv1.Operation, object reviewed) string {
		cluster := object.Annotations["kcp.io/cluster"]
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, cluster)
		patch := fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/reviewed","value":%q}]`, cluster)
		return fmt.Sprintf(`"allowed":true,"patchType":"JSONPatch","patch":%q`, base64.StdEncoding.EncodeToString([]byte(patch)))
	})
	return r
}

func (r *reviewer) configuration(name, namespaces string) string {
	return webhookConfiguration(r.Server, "Mutating", name, namespaces, `"CREATE","UPDATE"`)
}

// webhookConfiguration returns a configuration for operations on objects of example.org.
func webhookConfiguration(server *httptest.Server, kind, name, namespaces, operations string) string {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration","metadata":{"name":%q},"webhooks":[{"name":"a.example.org","clientConfig":{"url":%q,"caBundle":%q},"namespaceSelector":%s,"timeoutSeconds":30,"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":[%s],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["*"]}]}]}`,
		kind, name, server.URL, ca, namespaces, operations)
}

// createMutation creates a policy that applies labels to new widgets of a group, and its binding.
func createMutation(k kit.WorkspaceClient, group, labels string) {
	k.T.Helper()
	k.Create(kit.Registration+"mutatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"m"},"spec":{"reinvocationPolicy":"Never","matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[%q],"apiVersions":["*"],"resources":["widgets"]}]},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {%s}}}"}}]}}`, group, labels)
	k.Create(kit.Registration+"mutatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"m"},"spec":{"policyName":"m"}}`)
}

// testProvidersHooks checks that webhooks and policies of the provider apply to all objects of a bound API on the shard, and that
// those of the consumer do not.
func testProvidersHooks(t *testing.T, e *kit.Env) {
	provider, k, other := kit.NewWorkspaceClient(e, "hooks-provider").ForTest(t), kit.NewWorkspaceClient(e, "hooks-consumer").ForTest(t), kit.NewWorkspaceClient(e, "hooks-other").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	for _, consumer := range []kit.WorkspaceClient{k, other} {
		consumer.BindReady("e", provider, "e")
		kit.CreatePolicy(consumer, "own", "example.org", "false", "") // does not apply to bound APIs
		consumer.Create("/api/v1/namespaces", `{"metadata":{"name":"marked","labels":{"marked":%q}}}`, consumer.ClusterName)
	}
	dry := func(k kit.WorkspaceClient, namespace string, size int) (code int, message string) {
		return k.TryDo(http.MethodPost, "/apis/example.org/v1/namespaces/"+namespace+"/widgets?dryRun=All", kit.Widget("a", "size", size))
	}

	// A policy with parameters, which are in the provider's workspace.
	provider.Create("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	k.Create("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"limits"},"data":{"most":"1000"}}`)
	kit.CreatePolicy(provider, "limits", "example.org", "object.spec.size <= int(params.data.most) && object.metadata.annotations['kcp.io/cluster'] != ''", "limits")
	k.Eventually("the provider's policy applies", func() bool {
		refused, message := dry(k, "default", 4)
		allowed, _ := dry(k, "default", 3) // denied until the parameters are read
		return refused == http.StatusUnprocessableEntity && message != "" && allowed == http.StatusCreated
	})
	code, message := dry(k, "default", 3)
	require.Equal(t, http.StatusCreated, code, message)

	// A mutating policy with an apply configuration, which uses the schema of the consumer.
	createMutation(provider, "example.org", "'from': namespaceObject.?metadata.labels.?marked.orValue('none')")
	k.Eventually("the provider's policy mutates, with the consumer's namespace", func() bool {
		_, message = dry(k, "marked", 1)
		return strings.Contains(message, `"from":"`+k.ClusterName+`"`)
	})
	_, message = dry(other, "marked", 1)
	require.Contains(t, message, `"from":"`+other.ClusterName+`"`)

	// Webhooks, with and without a selector of the consumer's namespaces.
	all, some := newReviewer(t), newReviewer(t)
	provider.Create(kit.Registration+"mutatingwebhookconfigurations", "%s", all.configuration("all", "{}"))
	k.Eventually("the provider's webhook is called", func() bool {
		_, message = dry(k, "default", 1)
		return strings.Contains(message, `"reviewed":"`+k.ClusterName+`"`)
	})
	require.NotContains(t, message, "kcp.io/cluster\":\"forged")
	forged := `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"f","annotations":{"kcp.io/cluster":"forged"}},"spec":{"size":1}}`
	message = other.RequireCode(http.StatusCreated, http.MethodPost, kit.WidgetsPath, forged)
	require.Contains(t, message, `"reviewed":"`+other.ClusterName+`"`, "clients must not set the annotation")
	require.Contains(t, message, `"kcp.io/cluster":"`+other.ClusterName+`"`)
	provider.Delete(kit.Registration + "mutatingwebhookconfigurations/all")
	k.Eventually("the webhook is not called any more", func() bool {
		code, message = dry(k, "default", 1)
		return code == http.StatusCreated && !strings.Contains(message, "reviewed")
	})
	provider.Create(kit.Registration+"mutatingwebhookconfigurations", "%s", some.configuration("some", fmt.Sprintf(`{"matchLabels":{"marked":%q}}`, k.ClusterName)))
	k.Eventually("the webhook is called for namespaces of its selector", func() bool {
		_, message = dry(k, "marked", 1)
		return strings.Contains(message, `"reviewed":"`+k.ClusterName+`"`)
	})
	for _, not := range []struct {
		kit.WorkspaceClient
		namespace string
	}{{k, "default"}, {other, "marked"}} {
		code, message = dry(not.WorkspaceClient, not.namespace, 1)
		require.Equal(t, http.StatusCreated, code, message)
		require.NotContains(t, message, "reviewed", "in %s of %s", not.namespace, not.ClusterName)
	}
	some.mu.Lock()
	defer some.mu.Unlock()
	require.NotContains(t, some.seen, other.ClusterName)

	// Webhooks and policies of the provider must not apply to APIs that are not bound.
	k.RequireCode(http.StatusCreated, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`)
}

// testHooksAcrossShards checks that webhooks and policies of a provider on another shard apply, and that changes of them do.
func testHooksAcrossShards(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "far-hooks-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-hooks-consumer").ForTest(t)
	kit.CreatePolicy(provider, "early", "example.org", "object.spec.size != 13", "") // before the export exists
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.BindPathReady("e", "root:far-hooks-provider", "e")
	size := func(n int) (code int, message string) {
		return k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("a", "size", n))
	}
	k.UntilCode(http.StatusUnprocessableEntity, http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("a", "size", 13))
	code, message := size(1)
	require.Equal(t, http.StatusCreated, code, message)

	testFarParams(provider, k)
	provider.Delete(kit.Registration + "validatingadmissionpolicybindings/early")
	hook := newReviewer(t)
	provider.Create(kit.Registration+"mutatingwebhookconfigurations", "%s", hook.configuration("far", "{}"))
	k.Eventually("the webhook is called, and the policy is deleted", func() bool {
		code, message := size(1)
		return code == http.StatusCreated && strings.Contains(message, `"reviewed":"`+k.ClusterName+`"`)
	})
	provider.Delete(kit.Registration + "mutatingwebhookconfigurations/far")
	k.Eventually("the webhook is deleted", func() bool {
		code, message := size(1)
		return code == http.StatusCreated && !strings.Contains(message, "reviewed")
	})
}

// testFarParams checks that the parameters of a policy on another shard are those of the provider, and that changes of them apply.
func testFarParams(provider, k kit.WorkspaceClient) {
	k.T.Helper()
	widgetOf := func(n int, namespace string) (code int, message string) {
		return k.TryDo(http.MethodPost, "/apis/example.org/v1/namespaces/"+namespace+"/widgets?dryRun=All", kit.Widget("a", "size", n))
	}
	until := func(what, namespace string, most int) {
		k.T.Helper()
		var last []string
		require.Eventually(k.T, func() bool {
			refused, more := widgetOf(most+1, namespace)
			allowed, message := widgetOf(most, namespace)
			last = []string{more, message}
			return refused == http.StatusUnprocessableEntity && allowed == http.StatusCreated
		}, kit.Timeout, kit.Timeout/300, "%s: %v", what, &last)
	}
	const limits = "/api/v1/namespaces/default/configmaps/limits"
	provider.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"1000"}}`)
	kit.CreatePolicy(provider, "limits", "example.org", "object.spec.size <= int(params.data.most)", "limits")
	until("the provider's parameters apply", "default", 3)
	provider.Patch(limits, `{"data":{"most":"5"}}`)
	until("changed parameters apply", "default", 5)
	provider.Delete(limits)
	k.Eventually("the parameters are missing", func() bool {
		code, message := widgetOf(1, "default")
		return code == http.StatusUnprocessableEntity && strings.Contains(message, "no params found")
	})
	provider.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"6"}}`)
	until("parameters that are created again apply", "default", 6)

	// If there is no namespace, the parameters are in the provider's namespace of the same name. A selector may match several.
	for _, k := range []kit.WorkspaceClient{provider, k} {
		k.Create("/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
		k.Create("/api/v1/namespaces/other/configmaps", `{"metadata":{"name":"own","labels":{"limits":"yes"}},"data":{"most":%q}}`, map[string]string{provider.ClusterName: "2"}[k.ClusterName]+"0")
	}
	provider.Create(kit.Registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"selecting"},"spec":{"policyName":"limits","validationActions":["Deny"],"paramRef":{"selector":{"matchLabels":{"limits":"yes"}},"parameterNotFoundAction":"Allow"}}}`)
	provider.Patch(limits, `{"data":{"most":"1000"}}`)
	until("parameters of the namespace apply", "other", 20)
	code, message := widgetOf(21, "default")
	require.Equal(k.T, http.StatusCreated, code, message)
	provider.Create("/api/v1/namespaces/other/configmaps", `{"metadata":{"name":"more","labels":{"limits":"yes"}},"data":{"most":"10"}}`)
	until("all selected parameters apply", "other", 10)

	// Parameters of a kind that the provider has defined.
	provider.Create(kit.DefinitionsPath, "%s", definitionNamed("params.example.net", foos))
	provider.UntilCode(http.StatusCreated, http.MethodPost, "/apis/params.example.net/v1/foos", `{"apiVersion":"params.example.net/v1","kind":"Foo","metadata":{"name":"f"},"most":4}`)
	provider.Create(kit.Registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"defined"},"spec":{"paramKind":{"apiVersion":"params.example.net/v1","kind":"Foo"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["*"]}]},"validations":[{"expression":"object.spec.size <= params.most"}]}}`)
	provider.Create(kit.Registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"defined"},"spec":{"policyName":"defined","validationActions":["Deny"],"paramRef":{"name":"f","parameterNotFoundAction":"Deny"}}}`)
	until("parameters of the provider's kind apply", "default", 4)
	for _, resource := range []string{"validatingadmissionpolicybindings/defined", "validatingadmissionpolicies/defined", "validatingadmissionpolicybindings/selecting", "validatingadmissionpolicybindings/limits", "validatingadmissionpolicies/limits"} {
		provider.Delete(kit.Registration + resource)
	}
}

// newDenier returns the configuration of a validating webhook that denies objects of size 14 and the deletion of objects named kept.
func newDenier(t *testing.T) (configuration string) {
	t.Helper()
	server := newWebhook(t, func(operation admissionv1.Operation, object reviewed) string {
		allowed := object.Spec.Size != 14 && (operation != admissionv1.Delete || object.Name != "kept")
		return fmt.Sprintf(`"allowed":%t,"status":{"code":403,"message":"not in %s"}`, allowed, object.Annotations["kcp.io/cluster"])
	})
	return webhookConfiguration(server, "Validating", "validating", "{}", `"*"`)
}

// testHooksOfWriters checks that webhooks and policies of a provider, of all four kinds, apply to writes of consumers and to writes
// of the provider through its virtual workspace, while writes through claims are subject to those of the consumer.
func testHooksOfWriters(t *testing.T, name string, provider, k kit.WorkspaceClient) {
	t.Helper()
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.ClaimInExport(`[` + claim + `}]`)
	k.BindPathReady("e", "root:"+name, "e")
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	vw := kit.WorkspaceClient{Env: k.Env, Config: k.Config, ClusterName: provider.ClusterName}.ThroughExport("e", k.ClusterName)
	vw.UntilCode(http.StatusOK, http.MethodGet, kit.ConfigMapsPath, "")

	kit.CreatePolicy(provider, "policy", "example.org", "object.spec.size != 13", "")
	createMutation(provider, "example.org", "'from': object.metadata.annotations['kcp.io/cluster']")
	provider.Create(kit.Registration+"mutatingwebhookconfigurations", "%s", newReviewer(t).configuration("m", "{}"))
	provider.Create(kit.Registration+"validatingwebhookconfigurations", "%s", newDenier(t))
	kit.CreatePolicy(k, "own", "example.org", "false", "") // does not apply to bound APIs
	kit.CreatePolicy(provider, "configmaps", "", "false", "")
	kit.CreatePolicy(k, "configmaps", "", "object.metadata.name != 'bad'", "")

	message := ""
	made := func(k kit.WorkspaceClient, size int) int {
		code, response := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("dry", "size", size))
		message = response
		return code
	}
	k.Eventually("all webhooks and policies of the provider apply", func() bool {
		return made(k, 13) == http.StatusUnprocessableEntity && made(k, 14) == http.StatusForbidden && made(k, 1) == http.StatusCreated &&
			strings.Contains(message, `"from":"`+k.ClusterName+`"`) && strings.Contains(message, `"reviewed":"`+k.ClusterName+`"`)
	})
	k.UntilCode(http.StatusUnprocessableEntity, http.MethodPost, kit.ConfigMapsPath+"?dryRun=All", `{"metadata":{"name":"bad"}}`)
	k.Create(kit.WidgetsPath, "%s", kit.Widget("kept", "size", 1))
	for by, writer := range map[string]kit.WorkspaceClient{"consumer": k, "provider": vw} {
		require.Equal(t, http.StatusUnprocessableEntity, made(writer, 13), "%s: %s", by, message)
		require.Equal(t, http.StatusForbidden, made(writer, 14), "%s: %s", by, message)
		require.Contains(t, message, "not in "+k.ClusterName, by)
		object := writer.Create(kit.WidgetsPath, "%s", kit.Widget(by, "size", 1))
		require.Equal(t, k.ClusterName, object.GetLabels()["from"], by)
		require.Equal(t, k.ClusterName, object.GetAnnotations()["reviewed"], by)
		applied := writer.Do(http.StatusCreated, http.MethodPatch, kit.WidgetsPath+"/applied-by-"+by+"?fieldManager=test", kit.Widget("applied-by-"+by, "size", 1))
		require.Equal(t, k.ClusterName, applied.GetLabels()["from"], by)
		for size, want := range map[int]int{13: http.StatusUnprocessableEntity, 14: http.StatusForbidden, 2: http.StatusOK} {
			writer.Do(want, http.MethodPatch, kit.WidgetsPath+"/"+by, fmt.Sprintf(`{"spec":{"size":%d}}`, size))
			writer.Do(want, http.MethodPatch, kit.WidgetsPath+"/applied-by-"+by+"?fieldManager=test", kit.Widget("applied-by-"+by, "size", size))
		}
		writer.Do(http.StatusForbidden, http.MethodDelete, kit.WidgetsPath+"/kept", "")
		writer.Delete(kit.WidgetsPath + "/" + by)

		writer.RequireCode(http.StatusUnprocessableEntity, http.MethodPost, kit.ConfigMapsPath, `{"metadata":{"name":"bad"}}`)
		writer.Create(kit.ConfigMapsPath, `{"metadata":{"name":%q}}`, "by-"+by)
	}
}
