package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// testWatches holds the rules of watches that the other tests do not touch.
func testWatches(t *testing.T, all []endpoint) {
	t.Helper()
	eachEndpoint(t, all, func(t *testing.T, at endpoint) {
		list := at.list(t, "")
		watch := at.watch(t, "resourceVersion", list.Metadata.ResourceVersion)
		at.create(t, "watched-"+list.Metadata.ResourceVersion)
		added := watch.next()
		require.Equal(t, "ADDED", added.Type)
		require.Equal(t, "watched-"+list.Metadata.ResourceVersion, added.Object.Metadata.Name)
		require.NotEmpty(t, added.Object.Metadata.Annotations["kcp.io/cluster"])

		consistent := at.watch(t, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true").until(isInitialEnd)
		require.Len(t, consistent, len(list.Items)+2)
		require.GreaterOrEqual(t, number(t, consistent[len(consistent)-1].Object.Metadata.ResourceVersion), number(t, added.Object.Metadata.ResourceVersion))

		if at.one {
			path := fmt.Sprintf("%s/watched-%s", at.path, list.Metadata.ResourceVersion)
			code, body := do(t, at.config, call{method: http.MethodDelete, path: path})
			require.Equal(t, http.StatusOK, code, "%s", body)
			deleted := watch.next()
			require.Equal(t, "DELETED", deleted.Type)
			require.Equal(t, added.Object.Metadata.UID, deleted.Object.Metadata.UID)
			require.Greater(t, number(t, deleted.Object.Metadata.ResourceVersion), number(t, added.Object.Metadata.ResourceVersion))
		}
	})
}

// testNewResource holds that the first request for a new resource, whose cache
// is empty yet, waits for it and does not fail.
func testNewResource(t *testing.T, e *env) {
	shard := e.Shard(0)
	cluster := e.workspaceOn("root", "listwatch-new", "root").Spec.Cluster
	for n := range 3 {
		definition := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"fresh%[1]ds.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"fresh%[1]ds","singular":"fresh%[1]d","kind":"Fresh%[1]d","listKind":"Fresh%[1]dList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, n)
		made(t, shard, "/clusters/"+cluster+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
		at := endpoint{name: "fresh", config: shard, path: fmt.Sprintf("/clusters/%s/apis/example.com/v1/fresh%ds", cluster, n)}
		switch n {
		case 0:
			require.Empty(t, at.list(t, "").Items)
		case 1:
			require.Empty(t, at.list(t, "", "resourceVersion", "0").Items)
		case 2:
			require.True(t, isInitialEnd(at.watch(t, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true").next()))
		}
	}
}
