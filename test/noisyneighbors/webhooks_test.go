package noisyneighbors

import (
	"compress/gzip"
	"encoding/json"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	// blanks is the size of a response of the attacker's webhook.
	blanks = 500 << 20
	// confidential must not be returned to the attacker, because it may be the response of another
	// server.
	confidential = "response of an internal server"
)

// target is a URL that the shard calls for the attacker.
type target struct {
	url string
	ca  []byte
	// want is contained in the error that the attacker receives.
	want string
}

// attackerServer is a server of the attacker.
type attackerServer struct {
	*httptest.Server
	// redirected is the number of followed redirects, and credentials the number of calls with
	// credentials.
	redirected, credentials atomic.Int64
	// written is the number of blanks that were read or buffered.
	written atomic.Int64
}

func newAttackerServer(t *testing.T) *attackerServer {
	t.Helper()
	h := &attackerServer{}
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { h.redirected.Add(1) }))
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
			http.Error(w, confidential, http.StatusBadGateway)
		default:
			_, _ = io.WriteString(w, `{"kind":"Secret","apiVersion":"v1","message":"`+confidential+`"}`)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// targets returns the targets by name.
func (h *attackerServer) targets(t *testing.T, w *world) map[string]target {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(w.Dir, ".kcp", "serving-ca.crt"))
	require.NoError(t, err)
	const (
		size     = "the webhook returned more than 4194304 bytes"
		rejected = "which the server's --webhook-allowed-cidrs does not allow"
		// The servers are at loopback addresses, which are allowed here.
		forbidden    = "the webhook returned status 403; the response is not shown"
		unauthorized = "asked for the client to provide credentials"
	)
	mine := harness.CABundle(h.Server)
	return map[string]target{
		"blanks":    {h.URL + "/blanks", mine, size},
		"bomb":      {h.URL + "/bomb", mine, size},
		"redirect":  {h.URL + "/redirect", mine, "redirects are not followed"},
		"failure":   {h.URL + "/failure", mine, "the webhook returned status 502; the response is not shown"},
		"another":   {h.URL + "/another", mine, "is not an AdmissionReview or ConversionReview"},
		"metadata":  {"https://169.254.169.254/latest/meta-data", mine, rejected},
		"mapped":    {"https://[::ffff:10.0.0.1]:6443/", mine, rejected},
		"inner":     {"https://etcd.inner.invalid:2379/", mine, rejected},
		"cache":     {w.Component("cache-server").URL + "/services/cache/shards/root/clusters/root/api/v1/secrets", ca, forbidden},
		"the-shard": {w.Component("root").URL + "/clusters/root/api/v1/secrets", ca, unauthorized},
	}
}

// webhooks checks that responses of the attacker's webhooks do not use unlimited memory, that the
// shard does not call servers that the attacker cannot call, and that it does not return their
// responses.
func webhooks(t *testing.T, w *world) {
	h := newAttackerServer(t)
	targets := h.targets(t, w)
	for kind, try := range map[string]func(*testing.T, *world, map[string]target, func(string, error)){
		"mutating": admissionWebhooks("MutatingWebhookConfiguration"), "validating": admissionWebhooks("ValidatingWebhookConfiguration"), "converting": convertingWebhooks,
	} {
		h.written.Store(0)
		before := allocated()
		try(t, w, targets, func(name string, err error) {
			require.ErrorContains(t, err, targets[name].want, "%s %s", kind, name)
			require.NotContains(t, err.Error(), confidential, "%s %s", kind, name)
		})
		require.True(t, testing.Short() || allocated()-before < blanks/2, "allocated bytes for webhooks, %s", kind)
		require.Less(t, h.written.Load(), int64(64<<20), "read or buffered blanks, %s", kind)
	}
	require.Zero(t, h.redirected.Load(), "followed redirects")
	require.Zero(t, h.credentials.Load(), "calls with credentials")
	w.quiet.must(t, http.MethodGet, configMaps, "")
}

// allocated returns the bytes that the process has allocated since its start, or 0 with -latency, because the servers
// are other processes.
func allocated() uint64 {
	if *latencyFlag {
		return 0
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// write creates a ConfigMap for each target, and reports the errors.
func write(t *testing.T, w *world, targets map[string]target, report func(string, error)) {
	t.Helper()
	create := func(name string) error {
		_, err := w.attacker.kube.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(name), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	require.Eventually(t, func() bool { return create("redirect") != nil }, testTimeout, tick, "the webhooks were not called")
	for name := range targets {
		report(name, create(name))
	}
}

// admissionWebhooks creates a configuration with a webhook for each target. The fields of mutating and
// validating ones are the same.
func admissionWebhooks(kind string) func(*testing.T, *world, map[string]target, func(string, error)) {
	return func(t *testing.T, w *world, targets map[string]target, report func(string, error)) {
		t.Helper()
		config := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: w.id}}
		config.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind(kind))
		for name, to := range targets {
			config.Webhooks = append(config.Webhooks, admissionregistrationv1.ValidatingWebhook{
				Name: name + ".hostile.example", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(to.url), CABundle: to.ca},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
				MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "name", Expression: fmt.Sprintf("object.metadata.name == %q", name)}},
				SideEffects:     new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			})
		}
		path := "/apis/admissionregistration.k8s.io/v1/" + strings.ToLower(kind) + "s"
		body, err := json.Marshal(config)
		require.NoError(t, err)
		w.attacker.must(t, http.MethodPost, path, string(body))
		write(t, w, targets, report)
		w.attacker.must(t, http.MethodDelete, path+"/"+w.id, "")
	}
}

// convertingWebhooks defines a kind for each target, and reads an object in another version than
// its storage version.
func convertingWebhooks(t *testing.T, w *world, targets map[string]target, report func(string, error)) {
	t.Helper()
	for name, to := range targets {
		group := name + "." + w.id + ".converts.example"
		crd := things(group, "v1", "v2")
		convertBy(crd, to.url, to.ca)
		w.attacker.define(t, crd)
		w.attacker.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "one", ""))
		code, response, err := w.attacker.call(t.Context(), http.MethodGet, "/apis/"+group+"/v2/things/one", "")
		require.NoError(t, err)
		require.Equal(t, http.StatusInternalServerError, code)
		report(name, fmt.Errorf("%s", response))
	}
}
