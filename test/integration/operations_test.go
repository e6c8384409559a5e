package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver"]
- level: RequestResponse
  verbs: [create]
  resources: [{group: "", resources: [configmaps]}]
- level: Metadata
  resources: [{group: "", resources: [configmaps, secrets]}]
`

// TestAudit holds that events in the log and at the webhook name the logical
// cluster, its path and the whole URI, and carry the ID that the front-proxy
// gave the request.
func TestAudit(t *testing.T) {
	dir := t.TempDir()
	hook := newAuditHook(t)
	policy, log := writeFile(t, dir, "policy.yaml", auditPolicy), filepath.Join(dir, "audit.log")
	hookConfig := writeFile(t, dir, "webhook.yaml", `apiVersion: v1
kind: Config
clusters: [{name: hook, cluster: {server: "`+hook.URL+`"}}]
contexts: [{name: hook, context: {cluster: hook}}]
current-context: hook
`)
	e := start(t, harness.Options{DevTokens: true, ExtraArgs: map[string][]string{"shard": {
		"--audit-policy-file", policy, "--audit-log-path", log,
		"--audit-webhook-config-file", hookConfig, "--audit-webhook-batch-max-wait", "100ms",
	}}})
	ws := e.workspace("root", "audited")
	in := clientset(t, harness.In(e.Proxy(), "root:audited"))
	_, err := in.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "noted"}, Data: map[string]string{"k": "v"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	code, _ := do(t, harness.In(e.Proxy(), "root:audited"), call{
		path:   "/api/v1/namespaces/default/secrets?limit=7",
		header: http.Header{"Audit-ID": {"the-client-chose-it"}},
	})
	require.Equal(t, http.StatusOK, code)
	stranger := withToken(e.Proxy(), "user-5-token")
	code, _ = do(t, harness.In(at(stranger, e.Shard(0).Host), "root:audited"), call{path: "/api/v1/namespaces/default/secrets/x"})
	require.Equal(t, http.StatusForbidden, code)

	for name, events := range map[string]func() []auditv1.Event{"log": func() []auditv1.Event { return readAuditLog(t, log) }, "webhook": hook.received} {
		t.Run(name, func(t *testing.T) {
			prefix := "/clusters/" + ws.Spec.Cluster
			created := e.event(events, func(ev auditv1.Event) bool {
				return ev.Verb == "create" && ev.ObjectRef.Name == "noted"
			})
			require.Equal(t, prefix+"/api/v1/namespaces/default/configmaps", strings.Split(created.RequestURI, "?")[0])
			require.Equal(t, ws.Spec.Cluster, created.Annotations["kcp.io/cluster"])
			require.Equal(t, "root:audited", created.Annotations["kcp.io/path"])
			require.NotContains(t, created.Annotations, "shardplane.io/request-uri")
			require.Contains(t, string(created.RequestObject.Raw), `"k":"v"`)
			require.NotEmpty(t, created.User.Username)

			listed := e.event(events, func(ev auditv1.Event) bool { return ev.AuditID == "the-client-chose-it" })
			require.Equal(t, prefix+"/api/v1/namespaces/default/secrets?limit=7", listed.RequestURI)
			require.Nil(t, listed.ResponseObject, "no content of secrets")

			denied := e.event(events, func(ev auditv1.Event) bool {
				return ev.User.Username == "user-5" && ev.ResponseStatus != nil && ev.ResponseStatus.Code == http.StatusForbidden
			})
			require.Equal(t, "/clusters/root:audited/api/v1/namespaces/default/secrets/x", denied.RequestURI, "as the client wrote it to the shard")
			require.Equal(t, ws.Spec.Cluster, denied.Annotations["kcp.io/cluster"])
		})
	}
}

// event returns an event that fits, once there is one.
func (e *env) event(events func() []auditv1.Event, fits func(auditv1.Event) bool) auditv1.Event {
	e.t.Helper()
	var found auditv1.Event
	e.eventually("an audit event", func() bool {
		for _, ev := range events() {
			if ev.ObjectRef != nil && fits(ev) {
				found = ev
				return true
			}
		}
		return false
	})
	return found
}

func readAuditLog(t *testing.T, file string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var events []auditv1.Event
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return events // an unfinished line comes with the next read
		}
		require.NoError(t, err)
		var ev auditv1.Event
		require.NoError(t, json.Unmarshal(line, &ev), "%s", line)
		events = append(events, ev)
	}
}

// auditHook is a webhook that keeps the events it gets.
type auditHook struct {
	*httptest.Server

	mu     sync.Mutex
	events []auditv1.Event
}

func newAuditHook(t *testing.T) *auditHook {
	t.Helper()
	h := &auditHook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, list.Items...)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *auditHook) received() []auditv1.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]auditv1.Event(nil), h.events...)
}

func writeFile(t *testing.T, dir, name, content string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func clientset(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return c
}

// TestFloodOfOneTenant holds that a logical cluster whose requests wait and are
// refused does not hinder another.
func TestFloodOfOneTenant(t *testing.T) {
	const held, waiting = 4, 3
	hold := newHook(t)
	e := people{start(t, harness.Options{DevTokens: true, ExtraArgs: map[string][]string{"shard": {
		"--fairness-seats", fmt.Sprint(2 * held), "--fairness-seats-per-cluster", fmt.Sprint(held),
		"--fairness-queue-length-per-cluster", fmt.Sprint(2 * waiting), // one user has half of it
	}}})}
	for _, name := range []string{"noisy", "quiet"} {
		e.workspace("root", name)
		e.bindUser("root:"+name, "user-1", "cluster-admin", 1)
	}
	hold.install(e.admin("root:noisy"))
	e.eventually("the webhook is called", func() bool {
		_, err := e.admin("root:noisy").CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return hold.calls.Load() > 0
	})
	hold.shut()

	// Requests of the noisy tenant take all its seats and fill its queue.
	config := harness.In(withToken(e.Proxy(), "user-1-token"), "root:noisy")
	const clients = 24
	codes := make(chan int, clients)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range clients {
		go func() {
			code, _, err := send(ctx, config, call{
				method: http.MethodPost, path: "/api/v1/namespaces/default/configmaps",
				header: http.Header{"Content-Type": {"application/json"}},
				body:   fmt.Sprintf(`{"metadata":{"name":"c-%d"}}`, i),
			})
			if err != nil {
				code = -1
			}
			codes <- code
		}()
	}
	refusals := 0
	for refusals < clients-held-waiting {
		require.Equal(t, http.StatusTooManyRequests, <-codes, "nothing else is answered while the hook holds")
		refusals++
	}

	// Now the quiet one works as if it were alone.
	quiet := e.as(1, "root:quiet")
	for i := range 20 {
		_, err := quiet.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", i)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.Empty(t, codes, "the noisy tenant's requests still wait")
	// And so do the installation's own components and administrators.
	_, err := e.with(e.Shard(0), "root:noisy").CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	hold.open()
	for range clients - refusals {
		require.Equal(t, http.StatusCreated, <-codes, "what waited is done in the end")
	}
}

// hook is a validating webhook that allows everything, at once or once it is
// opened.
type hook struct {
	*httptest.Server

	t     *testing.T
	calls atomic.Int64
	mu    sync.Mutex
	gate  chan struct{}
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
	dir := t.TempDir()
	store := pki.NewStore(dir, time.Now)
	ca, err := store.Authority("sni-ca")
	require.NoError(t, err)
	other, err := store.Certificate("other", ca, pki.Spec{CommonName: "first", DNSNames: []string{"other.example.com"}})
	require.NoError(t, err)
	args := []string{"--tls-min-version", "VersionTLS13", "--tls-sni-cert-key", other.CertFile + "," + other.KeyFile}
	e := start(t, harness.Options{ExtraArgs: map[string][]string{"shard": args, "front-proxy": args, "cache-server": args}})

	servers := []string{e.Proxy().Host, e.Shard(0).Host, e.Cache().Host}
	for _, server := range servers {
		require.NotEqual(t, "first", servedName(t, server, "", tls.VersionTLS13))
		require.Equal(t, "first", servedName(t, server, "other.example.com", tls.VersionTLS13))
		require.Empty(t, servedName(t, server, "other.example.com", tls.VersionTLS12), "too old")
	}
	renewed, err := pki.NewStore(t.TempDir(), time.Now).Certificate("other", ca, pki.Spec{CommonName: "second", DNSNames: []string{"other.example.com"}})
	require.NoError(t, err)
	for from, to := range map[string]string{renewed.KeyFile: other.KeyFile, renewed.CertFile: other.CertFile} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
	for _, server := range servers {
		e.eventually("the renewed certificate is served", func() bool {
			return servedName(t, server, "other.example.com", tls.VersionTLS13) == "second"
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
