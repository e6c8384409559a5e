package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestRefusalIsOneRequest holds that a request for which the shard has no room
// costs it this one request, through the front-proxy too.
func TestRefusalIsOneRequest(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "audit.log")
	e := start(t, harness.Options{ExtraArgs: map[string][]string{"shard": {
		"--fairness-seats-per-cluster=1", "--fairness-seats-alone=1", "--fairness-queue-length-per-cluster=2",
		"--audit-log-path", log, "--audit-policy-file", writeFile(t, dir, "policy.yaml", `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`),
	}}})
	in := "/clusters/" + e.workspace("root", "full").Spec.Cluster
	config := e.Proxy()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	post := func(ctx context.Context, query string, body io.Reader) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+in+"/api/v1/namespaces/default/configmaps?dryRun=All&fieldManager="+query, body)
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		return client.Do(r)
	}
	// One has the seat and one waits for it, while their bodies do not end.
	held, release := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	for range cap(ended) {
		body, end := io.Pipe()
		defer func() { _ = end.Close() }()
		go func() {
			if res, err := post(held, "held", body); err == nil {
				_ = res.Body.Close()
			}
			ended <- struct{}{}
		}()
	}
	defer func() {
		release()
		for range cap(ended) {
			<-ended
		}
	}()
	attempt := 0
	e.eventually("there is no room", func() bool {
		attempt++
		res, err := post(t.Context(), fmt.Sprintf("try-%d.", attempt), strings.NewReader(`{"metadata":{"name":"x"}}`))
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusTooManyRequests
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
