package serving_test

import (
	"bytes"
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

	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// TestAuditWebhook: the webhook gets events with the operator's credentials; these
// do not follow a redirect, and an answer without end is not read.
func TestAuditWebhook(t *testing.T) {
	t.Parallel()
	type call struct{ path, authorization, body string }
	calls := make(chan call, 64)
	var answer func(http.ResponseWriter, *http.Request)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls <- call{r.URL.Path, r.Header.Get("Authorization"), string(body)}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	o := serving.NewAuditOptions()
	o.PolicyFile = file("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	o.LogOptions.Path = filepath.Join(dir, "audit.log")
	o.WebhookOptions.ConfigFile = file("webhook.yaml", `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"`+server.URL+`/events","certificate-authority-data":"`+ca+`"}}],
"users":[{"name":"u","user":{"token":"operators"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`)
	o.WebhookOptions.BatchOptions.Mode, o.WebhookOptions.InitialBackoff = options.ModeBlockingStrict, time.Microsecond
	config := &genericapiserver.Config{}
	require.NoError(t, o.ApplyTo(config))
	require.Equal(t, "union[ignoreErrors<log>,webhook]", config.AuditBackend.String())

	process := func() (ok bool, got []call) {
		ok = config.AuditBackend.ProcessEvents(&auditinternal.Event{AuditID: "the-event"})
		for len(calls) > 0 {
			got = append(got, <-calls)
		}
		return ok, got
	}
	answer = func(http.ResponseWriter, *http.Request) {}
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
			_, _ = w.Write(bytes.Repeat([]byte{' '}, webhooktransport.AnswerBytes+1))
		},
	} {
		answer = hostile
		ok, got := process()
		require.False(t, ok, name)
		require.Len(t, got, 5, "%s: it is tried again", name)
		for _, c := range got {
			require.Equal(t, "/events", c.path, name)
		}
	}
}

// TestAuditBufferBytes: in batch mode events wait for a webhook that takes nothing
// as far as there is room, in bytes of whatever clients can make large.
func TestAuditBufferBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := serving.NewAuditOptions()
	o.PolicyFile, o.WebhookOptions.ConfigFile = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "webhook.yaml")
	require.NoError(t, os.WriteFile(o.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600))
	require.NoError(t, os.WriteFile(o.WebhookOptions.ConfigFile, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://nowhere.invalid"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`), 0o600))
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
		require.NoError(t, o.ApplyTo(config)) // and it does not run: nothing leaves the buffer
		before := lost(t)
		for range events {
			config.AuditBackend.ProcessEvents(&event)
		}
		require.InDelta(t, events-fit, lost(t)-before, 0, name)
	}
}

// lost returns how many events the metric says are lost.
func lost(t *testing.T) (n float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "apiserver_audit_error_total" {
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					if label.GetValue() == "buffered" {
						n += metric.GetCounter().GetValue()
					}
				}
			}
		}
	}
	return n
}
