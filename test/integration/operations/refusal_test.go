package operations

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestRefusalIsOneRequest holds that a request for which the shard has no room
// costs it this one request, through the front-proxy too.
func TestRefusalIsOneRequest(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "audit.log")
	e := kit.Start(t, harness.Options{ExtraArgs: map[string][]string{"shard": {
		"--max-requests-inflight-per-cluster=2",
		"--audit-log-path", log, "--audit-policy-file", kit.WriteFile(t, dir, "policy.yaml", `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`),
	}}})
	in := "/clusters/" + e.Workspace("root", "full").Spec.Cluster
	config := e.Proxy()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	do := func(method, path, body string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+in+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		res, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer func() { _ = res.Body.Close() }()
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, err
	}
	// One user may have one of the two places; a webhook that does not answer keeps it.
	goOn := make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-goOn }))
	t.Cleanup(hook.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	const configMaps = "/api/v1/namespaces/default/configmaps"
	// The front-proxy knows then that the user may enter, and asks no more before it
	// passes bodies on.
	code, err := do(http.MethodGet, configMaps, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	code, err = do(http.MethodPost, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Sprintf(`{"metadata":{"name":"hangs"},"webhooks":[{
		"name":"hangs.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"failurePolicy":"Ignore","timeoutSeconds":30,
		"clientConfig":{"url":%q,"caBundle":%q},
		"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`, hook.URL, base64.StdEncoding.EncodeToString(ca)))
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code)
	held := make(chan struct{})
	go func() {
		defer close(held)
		for { // until the shard knows the webhook
			_, _ = do(http.MethodPost, configMaps+"?dryRun=All&fieldManager=held", `{"metadata":{"name":"x"}}`)
			select {
			case <-goOn:
				return
			default:
			}
		}
	}()
	defer func() {
		close(goOn)
		<-held
	}()
	attempt := 0
	e.Eventually("there is no room", func() bool {
		attempt++
		code, err := do(http.MethodGet, fmt.Sprintf("%s?labelSelector=try-%d.", configMaps, attempt), "")
		return err == nil && code == http.StatusTooManyRequests
	})
	var refused, asked int
	for _, event := range readAuditLog(t, log) {
		switch {
		case strings.HasPrefix(event.RequestURI, in+"/version"):
			asked++
		case strings.Contains(event.RequestURI, fmt.Sprintf("try-%d.", attempt)):
			require.EqualValues(t, http.StatusTooManyRequests, event.ResponseStatus.Code)
			refused++
		}
	}
	require.Equal(t, 1, refused, "the client's request")
	require.Zero(t, asked, "the front-proxy's question whether its user may enter")
}
