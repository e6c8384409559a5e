package serving_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// TestAuditPolicies checks that an invalid policy causes an error of one line that contains the
// flag and the reason.
func TestAuditPolicies(t *testing.T) {
	dir := t.TempDir()
	o := serving.NewAuditOptions()
	o.LogOptions.Path = filepath.Join(dir, "audit.log")
	require.Len(t, o.Validate(), 1, "a backend without a policy")
	o.PolicyFile = filepath.Join(dir, "policy.yaml")
	require.Empty(t, o.Validate())
	apply := func() error { return o.ApplyTo(t.Context(), &genericapiserver.Config{}) }

	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for name, tc := range map[string]struct{ content, want string }{
		"empty":         {"", "unknown group version"},
		"no YAML":       {"{{{", "failed decoding"},
		"no policy":     {"apiVersion: v1\nkind: ConfigMap\n", "no kind \"ConfigMap\" is registered"},
		"no version":    {"rules: [{level: None}]", "a policy has apiVersion"},
		"no rules":      {head, "0 rules"},
		"unknown level": {head + "rules: [{level: Everything}]", `Unsupported value: "Everything"`},
		"unknown stage": {head + "omitStages: [Later]\nrules: [{level: None}]", `Later`},
	} {
		require.NoError(t, os.WriteFile(o.PolicyFile, []byte(tc.content), 0o600))
		err := apply()
		require.ErrorContains(t, err, "--audit-policy-file: ", name)
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, strings.TrimSpace(err.Error()), "\n", name)
	}
	require.NoError(t, os.Remove(o.PolicyFile))
	require.ErrorContains(t, apply(), "no such file")

	require.NoError(t, os.WriteFile(o.PolicyFile, []byte(head+"rules: [{level: Metadata}]"), 0o600))
	require.NoError(t, apply())
	o.WebhookOptions.ConfigFile = filepath.Join(dir, "missing.yaml")
	require.ErrorContains(t, apply(), "--audit-webhook-config-file")
	o.WebhookOptions.ConfigFile, o.LogOptions.Path = "", ""
	require.Len(t, o.Validate(), 1, "a policy without a backend")
}

// webhookOptions returns the options for a webhook that receives all events, with credentials.
func webhookOptions(t *testing.T, url, ca string) serving.AuditOptions {
	t.Helper()
	dir := t.TempDir()
	o := serving.NewAuditOptions()
	o.PolicyFile, o.WebhookOptions.ConfigFile = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "webhook.yaml")
	for file, content := range map[string]string{
		o.PolicyFile: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
		o.WebhookOptions.ConfigFile: `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"` + url + `","certificate-authority-data":"` + ca + `"}}],
"users":[{"name":"u","user":{"token":"operators"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	return o
}

// TestAuditWebhook checks that the webhook receives events with the administrator's credentials,
// that redirects are not followed, and that endless responses are not read.
func TestAuditWebhook(t *testing.T) {
	t.Parallel()
	type call struct{ path, authorization, body string }
	calls := make(chan call, 64)
	var respond func(http.ResponseWriter, *http.Request)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls <- call{r.URL.Path, r.Header.Get("Authorization"), string(body)}
		respond(w, r)
	}))
	t.Cleanup(server.Close)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	o := webhookOptions(t, server.URL+"/events", ca)
	o.LogOptions.Path = filepath.Join(t.TempDir(), "audit.log")
	o.WebhookOptions.BatchOptions.Mode, o.WebhookOptions.InitialBackoff = options.ModeBlockingStrict, time.Microsecond
	config := &genericapiserver.Config{}
	require.NoError(t, o.ApplyTo(t.Context(), config))
	require.Equal(t, "union[ignoreErrors<log>,webhook]", config.AuditBackend.String())

	process := func() (ok bool, got []call) {
		ok = config.AuditBackend.ProcessEvents(&auditinternal.Event{AuditID: "the-event"})
		for len(calls) > 0 {
			got = append(got, <-calls)
		}
		return ok, got
	}
	respond = func(http.ResponseWriter, *http.Request) {}
	ok, got := process()
	require.True(t, ok)
	require.Len(t, got, 1)
	require.Equal(t, "/events", got[0].path)
	require.Equal(t, "Bearer operators", got[0].authorization)
	require.Contains(t, got[0].body, `"auditID":"the-event"`)

	for name, hostile := range map[string]func(http.ResponseWriter, *http.Request){
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"blanks": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte{' '}, webhooktransport.MaxResponseBytes+1))
		},
	} {
		respond = hostile
		ok, got := process()
		require.False(t, ok, name)
		require.Len(t, got, 5, "%s: the request must be retried", name)
		for _, c := range got {
			require.Equal(t, "/events", c.path, name)
		}
	}
}

// TestAuditBufferBytes checks that the size of buffered events is limited, including everything
// that clients control.
func TestAuditBufferBytes(t *testing.T) {
	t.Parallel()
	o := webhookOptions(t, "https://nowhere.invalid", "")
	o.WebhookBufferBytes = 0
	require.ErrorContains(t, errors.Join(o.Validate()...), "--audit-webhook-batch-buffer-bytes is 0")
	const fit, events, size = 4, 10, 1 << 20
	o.WebhookBufferBytes = fit*size + size/2
	large := strings.Repeat("x", size-(4<<10))
	impersonated := authenticationv1.UserInfo{Groups: []string{large}}
	for name, event := range map[string]auditinternal.Event{
		"request":      {RequestObject: &runtime.Unknown{Raw: []byte(large)}},
		"response":     {ResponseObject: &runtime.Unknown{Raw: []byte(large)}},
		"message":      {ResponseStatus: &metav1.Status{Message: large}},
		"annotation":   {Annotations: map[string]string{"policy": large}},
		"URI":          {RequestURI: large[:len(large)/2]},
		"user agent":   {UserAgent: large},
		"method":       {Verb: large},
		"ID":           {AuditID: types.UID(large)},
		"extra":        {User: authenticationv1.UserInfo{Extra: map[string]authenticationv1.ExtraValue{"k": {large}}}},
		"impersonated": {ImpersonatedUser: &impersonated},
	} {
		config := &genericapiserver.Config{}
		require.NoError(t, o.ApplyTo(t.Context(), config)) // without Run, all events stay in the buffer
		before := lost()
		for range events {
			config.AuditBackend.ProcessEvents(&event)
		}
		require.InDelta(t, events-fit, lost()-before, 0, name)
	}
}

// lost returns the number of lost events in the metric, which does not exist before the first one.
func lost() float64 {
	const metric = "apiserver_audit_error_total"
	counts, _ := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, metric, nil, "plugin")
	return counts["buffered"]
}

func serveTLS(t *testing.T, o serving.Options) string {
	t.Helper()
	store := pki.NewStore(t.TempDir(), time.Now)
	ca, err := store.Authority("ca")
	require.NoError(t, err)
	pair, err := store.Certificate("server", ca, pki.Spec{CommonName: "localhost", DNSNames: []string{"localhost"}})
	require.NoError(t, err)
	o.TLSCertFile, o.TLSPrivateKeyFile = pair.CertFile, pair.KeyFile
	require.Empty(t, o.Validate())
	listener, err := o.Listen(nil)
	require.NoError(t, err)
	stop := make(chan struct{})
	stopped, _, err := listener.Serve(http.NotFoundHandler(), time.Second, stop)
	require.NoError(t, err)
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return listener.Listener.Addr().String()
}

// shake returns the connection state after a handshake.
func shake(t *testing.T, address string, config *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	config.InsecureSkipVerify = true
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState(), nil
}

func TestTLSOptions(t *testing.T) {
	const good, other = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	old := func(suite uint16) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}} //nolint:gosec // the test requires the old version
	}
	protocols := &tls.Config{NextProtos: []string{"h2", "http/1.1"}} //nolint:gosec // the server chooses

	address := serveTLS(t, serving.NewOptions(0))
	state, err := shake(t, address, protocols)
	require.NoError(t, err)
	require.Equal(t, "h2", state.NegotiatedProtocol)
	_, err = shake(t, address, &tls.Config{MaxVersion: tls.VersionTLS11}) //nolint:gosec // it is refused
	require.Error(t, err, "versions before TLS 1.2 must be rejected by default")

	o := serving.NewOptions(0)
	o.CipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
	address = serveTLS(t, o)
	state, err = shake(t, address, old(good))
	require.NoError(t, err)
	require.Equal(t, good, state.CipherSuite)
	_, err = shake(t, address, old(other))
	require.Error(t, err, "cipher suites that are not listed must be rejected")
}

func TestTLSOptionsNameTheFlag(t *testing.T) {
	for flag, change := range map[string]func(o *serving.Options){
		"--tls-cipher-suites":                func(o *serving.Options) { o.CipherSuites = []string{"ROT13"} },
		"--tls-min-version":                  func(o *serving.Options) { o.MinTLSVersion = "SSL3" },
		"--http2-max-streams-per-connection": func(o *serving.Options) { o.MaxStreams = 0 },
	} {
		o := serving.NewOptions(0)
		o.TLSCertFile, o.TLSPrivateKeyFile = "cert.pem", "key.pem"
		change(&o)
		errs := o.Validate()
		require.Len(t, errs, 1, flag)
		require.ErrorContains(t, errs[0], flag)
	}
}
