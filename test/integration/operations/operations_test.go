package operations

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestFloodOfOneTenant holds that a logical cluster whose requests wait and are
// refused does not hinder another.
func TestFloodOfOneTenant(t *testing.T) {
	t.Parallel()
	const held = 6
	hold, dir := newHook(t), t.TempDir()
	log := filepath.Join(dir, "audit.log")
	// A cluster of its own, because it executes few requests at a time.
	e := kit.People{Env: kit.Start(t, harness.Options{DevTokens: true, ExtraArgs: map[string][]string{"shard": {
		"--audit-log-path", log, "--audit-policy-file", kit.WriteFile(t, dir, "policy.yaml", `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`),
		"--fairness-seats", "4", "--fairness-seats-per-cluster", "2", "--fairness-seats-alone", "2",
		// One user has half of it; as many as it is long wait for webhooks.
		"--fairness-queue-length-per-cluster", fmt.Sprint(held),
	}}})}
	for _, name := range []string{"noisy", "quiet"} {
		e.Workspace("root", name)
		e.BindUser("root:"+name, "user-1", "cluster-admin", 1)
	}
	hold.install(e.Admin("root:noisy"))
	e.Eventually("the webhook is called", func() bool {
		_, err := e.Admin("root:noisy").CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return hold.calls.Load() > 0
	})
	hold.shut()

	// Requests of the noisy tenant take all that it may have and fill its queue.
	config := harness.In(kit.WithToken(e.Proxy(), "user-1-token"), "root:noisy")
	const clients = 24
	codes := make(chan int, clients)
	var refusals atomic.Int64
	already := hold.calls.Load()
	for i := range clients {
		go func() {
			for {
				code, _, err := kit.Send(t.Context(), config, kit.Request{
					Method: http.MethodPost, Path: "/api/v1/namespaces/default/configmaps",
					Header: http.Header{"Content-Type": {"application/json"}},
					Body:   fmt.Sprintf(`{"metadata":{"name":"c-%d"}}`, i),
				})
				if err != nil || code != http.StatusTooManyRequests {
					codes <- code
					return
				}
				refusals.Add(1)
			}
		}()
	}
	e.Eventually("the hook holds all that may wait for it", func() bool { return hold.calls.Load() == already+held })
	e.Eventually("others are refused", func() bool { return refusals.Load() > clients })

	requireRefusedOnce(t, e.Env, config, log)

	// Now the quiet one works as if it were alone.
	quiet := e.As(1, "root:quiet")
	for i := range 20 {
		_, err := quiet.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", i)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.Empty(t, codes, "the noisy tenant's requests still wait")
	// And so do the installation's own components and administrators.
	_, err := e.With(e.Shard(0), "root:noisy").CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	hold.open()
	for range clients {
		require.Equal(t, http.StatusCreated, <-codes, "what waited is done in the end")
	}

	// A webhook may itself write where it is asked about a write, however few
	// requests are executed at a time.
	hold.before = func() {
		_, err := e.As(1, "root:noisy").CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "hook-"}}, metav1.CreateOptions{})
		hold.failed.Store(err != nil)
	}
	var writes sync.WaitGroup
	for range 4 {
		writes.Go(func() {
			code, body, err := kit.Send(t.Context(), config, kit.Request{
				Method: http.MethodPost, Path: "/api/v1/namespaces/default/configmaps",
				Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"metadata":{"generateName":"c-"}}`,
			})
			assert.NoError(t, err)
			assert.Equal(t, http.StatusCreated, code, "%s", body)
		})
	}
	writes.Wait()
	require.False(t, hold.failed.Load())
}

// requireRefusedOnce checks that a request for which a logical cluster has no capacity costs the shard
// one request: the front-proxy neither retries nor authorizes it again.
func requireRefusedOnce(t *testing.T, e *kit.Env, config *rest.Config, log string) {
	t.Helper()
	before := len(readAuditLog(t, log))
	code, _ := kit.Do(t, config, kit.JSONRequest(http.MethodPost, "/api/v1/namespaces/default/configmaps?fieldManager=refused-once", `{"metadata":{"name":"refused"}}`))
	require.Equal(t, http.StatusTooManyRequests, code)
	var refused []int32
	e.Eventually("the refusal is recorded", func() bool {
		refused = nil
		for _, event := range readAuditLog(t, log)[before:] {
			require.NotContains(t, event.RequestURI, "/version", "the front-proxy asks whether its user may enter")
			if strings.Contains(event.RequestURI, "refused-once") {
				refused = append(refused, event.ResponseStatus.Code)
			}
		}
		return len(refused) > 0
	})
	require.Equal(t, []int32{http.StatusTooManyRequests}, refused)
}

// hook is a validating webhook that allows everything, at once or once it is
// opened.
type hook struct {
	*httptest.Server

	t     *testing.T
	calls atomic.Int64
	// before, if set, is called before the answer; failed says how it went.
	before func()
	failed atomic.Bool

	mu   sync.Mutex
	gate chan struct{}
}

func newHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{t: t, gate: make(chan struct{})}
	close(h.gate)
	h.Server = httptest.NewTLSServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) serve(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.calls.Add(1)
	if h.before != nil {
		h.before()
	}
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	select {
	case <-gate:
	case <-r.Context().Done():
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	_ = json.NewEncoder(w).Encode(review)
}

func (h *hook) shut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = make(chan struct{})
	h.t.Cleanup(h.open) // the server waits for its requests
}

func (h *hook) open() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.gate:
	default:
		close(h.gate)
	}
}

// install has the hook called for ConfigMaps.
func (h *hook) install(c kubernetes.Interface) {
	h.t.Helper()
	_, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(h.t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hold"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hold.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      &h.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](30),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	require.NoError(h.t, err)
}

// TestServingCertificates holds that clients get the certificate of the name
// that they ask for, from front-proxy, shard and cache server, a new one once
// its file has changed, and no TLS older than was asked for.
func TestServingCertificates(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	other := everything.sni
	ca, err := everything.store.Authority("sni-ca")
	require.NoError(t, err)
	loaded, err := tls.LoadX509KeyPair(other.CertFile, other.KeyFile)
	require.NoError(t, err)
	first := loaded.Leaf.Subject.CommonName
	second := first + "-renewed"
	servers := []string{e.Proxy().Host, e.Shard(0).Host, e.Cache().Host}
	for _, server := range servers {
		require.NotEqual(t, first, servedName(t, server, "", tls.VersionTLS13))
		require.Equal(t, first, servedName(t, server, "other.example.com", tls.VersionTLS13))
		require.Empty(t, servedName(t, server, "other.example.com", tls.VersionTLS12), "too old")
	}
	renewed, err := pki.NewStore(t.TempDir(), time.Now).Certificate("other", ca, pki.Spec{CommonName: second, DNSNames: []string{"other.example.com"}})
	require.NoError(t, err)
	for from, to := range map[string]string{renewed.KeyFile: other.KeyFile, renewed.CertFile: other.CertFile} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
	for _, server := range servers {
		e.Eventually("the renewed certificate is served", func() bool {
			return servedName(t, server, "other.example.com", tls.VersionTLS13) == second
		})
	}
}

// servedName returns the common name of the certificate that a server shows to
// clients that ask for name; empty if they cannot agree on a version.
func servedName(t *testing.T, server, name string, version uint16) string {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{
		ServerName: name, InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, //nolint:gosec // asks only for the name
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(server, "https://"))
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
}
