package neighbours

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// blanks is what a webhook of the attacker answers, if somebody reads it.
	blanks = 500 << 20
	// inner must not reach the attacker: another server said it.
	inner = "said by a server of the operator"
)

// target is a URL that the attacker has the shard call.
type target struct {
	url string
	ca  []byte
	// want is in what the attacker is told.
	want string
}

// hostile is a server of the attacker.
type hostile struct {
	*httptest.Server
	// elsewhere counts calls that a redirect has brought about, with credentials
	// those that brought some along.
	elsewhere, credentials atomic.Int64
	// written counts blanks that somebody has read, or that are under way.
	written atomic.Int64
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{}
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { h.elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	fill := func(w io.Writer, count *atomic.Int64) {
		block := []byte(strings.Repeat(" ", 1<<20))
		for range blanks >> 20 {
			n, err := w.Write(block)
			count.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) > 0 {
			h.credentials.Add(1)
		}
		switch r.URL.Path {
		case "/blanks":
			fill(w, &h.written)
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			fill(packed, new(atomic.Int64))
			_ = packed.Close()
		case "/redirect":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "/failure":
			http.Error(w, inner, http.StatusBadGateway)
		default:
			_, _ = io.WriteString(w, `{"kind":"Secret","apiVersion":"v1","message":"`+inner+`"}`)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// targets are by name what the attacker tries.
func (h *hostile) targets(t *testing.T, w *world) map[string]target {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(w.Dir, ".kcp", "serving-ca.crt"))
	require.NoError(t, err)
	const (
		size    = "the webhook answered with more than 4194304 bytes"
		refused = "which the server's --webhook-allowed-cidrs does not allow"
		// The servers are at loopback addresses, which are allowed here.
		forbidden    = "the webhook answered with status 403; its content is not shown"
		unauthorized = "asked for the client to provide credentials"
	)
	mine := caOf(h.Server)
	return map[string]target{
		"blanks":    {h.URL + "/blanks", mine, size},
		"bomb":      {h.URL + "/bomb", mine, size},
		"redirect":  {h.URL + "/redirect", mine, "redirects are not followed"},
		"failure":   {h.URL + "/failure", mine, "the webhook answered with status 502; its content is not shown"},
		"another":   {h.URL + "/another", mine, "is not the JSON of an AdmissionReview or ConversionReview"},
		"metadata":  {"https://169.254.169.254/latest/meta-data", mine, refused},
		"mapped":    {"https://[::ffff:10.0.0.1]:6443/", mine, refused},
		"inner":     {"https://etcd.inner.invalid:2379/", mine, refused},
		"cache":     {w.Component("cache-server").URL + "/services/cache/shards/root/clusters/root/api/v1/secrets", ca, forbidden},
		"the-shard": {w.Component("root").URL + "/clusters/root/api/v1/secrets", ca, unauthorized},
	}
}

// webhooks: what the attacker's webhooks answer takes no memory without bound;
// the shard calls nothing for the attacker that the attacker could not call, and
// does not say what others answered.
func webhooks(t *testing.T, w *world) {
	h := newHostile(t)
	targets := h.targets(t, w)
	for kind, try := range map[string]func(*testing.T, *world, map[string]target, func(string, error)){
		"mutating": mutatingWebhooks, "validating": validatingWebhooks, "converting": convertingWebhooks,
	} {
		h.written.Store(0)
		before := allocated()
		try(t, w, targets, func(name string, err error) {
			require.ErrorContains(t, err, targets[name].want, "%s %s", kind, name)
			require.NotContains(t, err.Error(), inner, "%s %s", kind, name)
		})
		require.True(t, testing.Short() || allocated()-before < blanks/2, "bytes that were allocated in all for webhooks, %s", kind)
		require.Less(t, h.written.Load(), int64(64<<20), "blanks that were read or are in buffers, %s", kind)
	}
	require.Zero(t, h.elsewhere.Load(), "redirects that were followed")
	require.Zero(t, h.credentials.Load(), "calls with credentials")
	w.quiet.must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
}

// allocated returns the bytes that were allocated since the process started.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// admitted is the part of a webhook that is the same for both kinds: one is
// called for config maps of its name.
func (to target) admitted(name string) (conditions []admissionregistrationv1.MatchCondition, client admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) {
	conditions = []admissionregistrationv1.MatchCondition{{Name: "name", Expression: fmt.Sprintf("object.metadata.name == %q", name)}}
	rules = []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	return conditions, admissionregistrationv1.WebhookClientConfig{URL: new(to.url), CABundle: to.ca}, rules
}

// write creates a config map of each name, and hands over what the attacker is
// told.
func write(t *testing.T, w *world, targets map[string]target, told func(string, error)) {
	t.Helper()
	create := func(name string) error {
		_, err := w.attacker.kube.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(name), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	require.Eventually(t, func() bool { return create("redirect") != nil }, testTimeout, tick, "the webhooks are called")
	for name := range targets {
		told(name, create(name))
	}
}

func mutatingWebhooks(t *testing.T, w *world, targets map[string]target, told func(string, error)) {
	t.Helper()
	config := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: w.mark}}
	for name, to := range targets {
		conditions, client, rules := to.admitted(name)
		config.Webhooks = append(config.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name: name + ".hostile.example", ClientConfig: client, Rules: rules, MatchConditions: conditions,
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		})
	}
	configurations := w.attacker.kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := configurations.Create(t.Context(), config, metav1.CreateOptions{})
	require.NoError(t, err)
	write(t, w, targets, told)
	require.NoError(t, configurations.Delete(t.Context(), config.Name, metav1.DeleteOptions{}))
}

func validatingWebhooks(t *testing.T, w *world, targets map[string]target, told func(string, error)) {
	t.Helper()
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: w.mark}}
	for name, to := range targets {
		conditions, client, rules := to.admitted(name)
		config.Webhooks = append(config.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: name + ".hostile.example", ClientConfig: client, Rules: rules, MatchConditions: conditions,
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		})
	}
	configurations := w.attacker.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := configurations.Create(t.Context(), config, metav1.CreateOptions{})
	require.NoError(t, err)
	write(t, w, targets, told)
	require.NoError(t, configurations.Delete(t.Context(), config.Name, metav1.DeleteOptions{}))
}

// convertingWebhooks defines a kind for each target and reads an object in
// another version than it is stored in.
func convertingWebhooks(t *testing.T, w *world, targets map[string]target, told func(string, error)) {
	t.Helper()
	for name, to := range targets {
		group := name + "." + w.mark + ".converts.example"
		crd := things(group, "v1", "v2")
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1"},
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: new(to.url), CABundle: to.ca},
			},
		}
		w.attacker.define(t, crd)
		w.attacker.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "one", ""))
		code, answer, err := w.attacker.call(t.Context(), http.MethodGet, "/apis/"+group+"/v2/things/one", "")
		require.NoError(t, err)
		require.Equal(t, http.StatusInternalServerError, code)
		told(name, fmt.Errorf("%s", answer))
	}
}
