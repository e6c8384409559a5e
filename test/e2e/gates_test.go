package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestShardingOff disables the feature gate ShardedListAndWatch. If it is disabled, OpenAPI must not contain shardSelector, lists must have
// no shardInfo, and deletions with it must be rejected. TestFiltered of pkg/client covers informers with such a server.
func TestShardingOff(t *testing.T) {
	t.Parallel()
	off := []string{"--feature-gates=ShardedListAndWatch=false"}
	c := harness.Start(t, harness.Options{Mode: harness.Processes, ExtraArgs: map[string][]string{"shard": off, "cache-server": off}})
	shard, proxied := harness.In(c.Shard(0), "root"), harness.In(c.Proxy(), "root")
	replicas := rest.CopyConfig(c.Cache())
	replicas.Host += "/services/cache/shards/e2e/clusters/root"
	requireCode := func(config *rest.Config, want int, method, path, body string) string {
		t.Helper()
		code, response := send(t, config, method, path, body)
		require.Equal(t, want, code, "%s %s: %s", method, path, response)
		return response
	}

	const (
		selector = "shardSelector=shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')"
		types    = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes"
		typeKept = `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"kept"}}`
	)
	for _, of := range []struct {
		at                 *rest.Config
		collection, create string
	}{
		{shard, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"kept"}}`},
		{shard, types, typeKept},
		{shard, "/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"kept"}}`},
		{proxied, "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"kept"}}`},
		{replicas, types, typeKept},
	} {
		requireCode(of.at, http.StatusCreated, http.MethodPost, of.collection, of.create)
		require.Contains(t, requireCode(of.at, http.StatusBadRequest, http.MethodDelete, of.collection+"?"+selector, ""), "ShardedListAndWatch")
		response := requireCode(of.at, http.StatusOK, http.MethodGet, of.collection+"?"+selector, "")
		require.Contains(t, response, `"name":"kept"`)
		var list struct{ Metadata metav1.ListMeta }
		require.NoError(t, json.Unmarshal([]byte(response), &list))
		require.Nil(t, list.Metadata.ShardInfo)

		events := ""
		for seconds := 1; events == "" && seconds < 60; seconds *= 2 { // one second may be too short for an event
			events = requireCode(of.at, http.StatusOK, http.MethodGet, fmt.Sprintf("%s?watch=true&timeoutSeconds=%d&%s", of.collection, seconds, selector), "")
		}
		require.Contains(t, events, `"name":"kept"`)
	}
	for _, document := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1", "/openapi/v3/apis/coordination.k8s.io/v1"} {
		response := requireCode(shard, http.StatusOK, http.MethodGet, document, "")
		require.Contains(t, response, "labelSelector", document)
		// This is the parameter. Endpoint slices have a field of the same name.
		require.NotContains(t, response, `"name":"shardSelector"`, document)
	}
}
