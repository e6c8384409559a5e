package e2e

import (
	"encoding/json"
	"fmt"
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
// shardInfo, and by refusing to delete. What informers make of such a server is in
// TestFiltered of pkg/client.
func TestShardingOff(t *testing.T) {
	off := []string{"--feature-gates=ShardedListAndWatch=false"}
	c := harness.Start(t, harness.Options{Mode: harness.Processes, ExtraArgs: map[string][]string{"shard": off, "cache-server": off}})
	config := harness.In(c.Shard(0), "root")
	proxied := harness.In(c.Proxy(), "root")
	replicas := rest.CopyConfig(c.Cache())
	replicas.Host += "/services/cache/shards/e2e/clusters/root"
	clients := map[string]*http.Client{}
	for _, of := range []*rest.Config{config, proxied, replicas} {
		client, err := rest.HTTPClientFor(of)
		require.NoError(t, err)
		defer client.CloseIdleConnections()
		clients[of.Host] = client
	}
	askAt := func(at *rest.Config, method, path, body string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, at.Host+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Accept", "application/json")
		request.Header.Set("Content-Type", "application/json")
		response, err := clients[at.Host].Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		answer, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(answer)
	}
	ask := func(method, path, body string) (int, string) { return askAt(config, method, path, body) }

	const (
		selector = "shardSelector=shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')"
		types    = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes"
		typeKept = `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"kept"}}`
	)
	for _, of := range []struct {
		at                 *rest.Config
		collection, create string
	}{
		{config, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"kept"}}`},
		{config, types, typeKept},
		{config, "/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"kept"}}`},
		{proxied, "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"kept"}}`},
		{replicas, types, typeKept},
	} {
		code, answer := askAt(of.at, http.MethodPost, of.collection, of.create)
		require.Equal(t, http.StatusCreated, code, answer)
		code, answer = askAt(of.at, http.MethodDelete, of.collection+"?"+selector, "")
		require.Equal(t, http.StatusBadRequest, code, answer)
		require.Contains(t, answer, "ShardedListAndWatch")

		code, answer = askAt(of.at, http.MethodGet, of.collection+"?"+selector, "")
		require.Equal(t, http.StatusOK, code, answer)
		require.Contains(t, answer, `"name":"kept"`)
		var list struct{ Metadata metav1.ListMeta }
		require.NoError(t, json.Unmarshal([]byte(answer), &list))
		require.Nil(t, list.Metadata.ShardInfo)

		answer = ""
		for seconds := 1; answer == "" && seconds < 60; seconds *= 2 { // one may be too short for anything to be told
			code, answer = askAt(of.at, http.MethodGet, fmt.Sprintf("%s?watch=true&timeoutSeconds=%d&%s", of.collection, seconds, selector), "")
			require.Equal(t, http.StatusOK, code, answer)
		}
		require.Contains(t, answer, `"name":"kept"`)
	}
	for _, document := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1", "/openapi/v3/apis/coordination.k8s.io/v1"} {
		code, answer := ask(http.MethodGet, document, "")
		require.Equal(t, http.StatusOK, code, document)
		require.Contains(t, answer, "labelSelector", document)
		// The parameter; endpoint slices have a field of the name.
		require.NotContains(t, answer, `"name":"shardSelector"`, document)
	}
}
