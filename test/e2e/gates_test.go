package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestShardingOff turns the gate ShardedListAndWatch off. The server then says
// that it knows no shardSelector: in its OpenAPI documents, by lists without
// shardInfo, and by refusing to delete.
func TestShardingOff(t *testing.T) {
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Without: []string{"cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {"--feature-gates=ShardedListAndWatch=false"}},
	})
	config := harness.In(c.Shard(0), "root")
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	ask := func(method, path, body string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Accept", "application/json")
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		answer, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(answer)
	}

	const selector = "shardSelector=shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')"
	for collection, create := range map[string]string{
		"/api/v1/namespaces/default/configmaps":                  `{"metadata":{"name":"kept"}}`,
		"/apis/tenancy.kcp.io/v1alpha1/workspacetypes":           `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"kept"}}`,
		"/apis/coordination.k8s.io/v1/namespaces/default/leases": `{"metadata":{"name":"kept"}}`,
	} {
		code, answer := ask(http.MethodPost, collection, create)
		require.Equal(t, http.StatusCreated, code, answer)
		code, answer = ask(http.MethodDelete, collection+"?"+selector, "")
		require.Equal(t, http.StatusBadRequest, code, answer)
		require.Contains(t, answer, "ShardedListAndWatch")

		code, answer = ask(http.MethodGet, collection+"?"+selector, "")
		require.Equal(t, http.StatusOK, code, answer)
		require.Contains(t, answer, `"name":"kept"`)
		var list struct{ Metadata metav1.ListMeta }
		require.NoError(t, json.Unmarshal([]byte(answer), &list))
		require.Nil(t, list.Metadata.ShardInfo)
	}
	for _, document := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1", "/openapi/v3/apis/coordination.k8s.io/v1"} {
		code, answer := ask(http.MethodGet, document, "")
		require.Equal(t, http.StatusOK, code, document)
		require.Contains(t, answer, "labelSelector", document)
		require.NotContains(t, answer, "shardSelector", document)
	}
}
