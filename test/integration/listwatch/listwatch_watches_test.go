package listwatch

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testWatches checks the rules of watches that other tests do not cover.
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

		name := "watched-" + list.Metadata.ResourceVersion
		at.remove(t, name)
		deleted := watch.next()
		require.Equal(t, "DELETED", deleted.Type)
		require.Equal(t, added.Object.Metadata.UID, deleted.Object.Metadata.UID)
		require.Greater(t, number(t, deleted.Object.Metadata.ResourceVersion), number(t, added.Object.Metadata.ResourceVersion))

		testWatchStart(t, at)
		testWatchForms(t, at)
	})
}

// testWatchStart checks the initial events of a watch: all acknowledged writes by default, and a bookmark only if requested.
func testWatchStart(t *testing.T, at endpoint) {
	t.Helper()
	first := "start-" + at.list(t, "").Metadata.ResourceVersion
	at.create(t, first)
	whole := at.list(t, "")
	for _, query := range [][]string{
		{},
		{"resourceVersion", whole.Metadata.ResourceVersion, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan"},
		{"sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan"},
	} {
		watch := at.watch(t, query...)
		var names []string
		for range whole.Items {
			e := watch.next()
			require.Equal(t, "ADDED", e.Type)
			names = append(names, e.Object.Metadata.Annotations["kcp.io/cluster"]+"|"+e.Object.Metadata.Namespace+"/"+e.Object.Metadata.Name)
		}
		require.ElementsMatch(t, whole.names(), names, "%v", query)
		at.create(t, "next")
		require.Equal(t, "ADDED next", watch.next().String(), "bookmarks were not requested")
		at.remove(t, "next")
		require.Equal(t, "DELETED next", watch.next().String())
	}
	cached := at.watch(t, "resourceVersion", "0")
	cached.until(func(e event) bool { return e.String() == "ADDED "+first })
	none := at.watch(t, "sendInitialEvents", "false", "resourceVersionMatch", "NotOlderThan", "resourceVersion", whole.Metadata.ResourceVersion)
	at.remove(t, first)
	for _, want := range []string{"ADDED next", "DELETED next", "ADDED next", "DELETED next", "ADDED next", "DELETED next", "DELETED " + first} {
		require.Equal(t, want, none.next().String(), "initial events were not requested")
	}
}

// testWatchForms checks that watches of several forms, which share events, do not affect each other.
func testWatchForms(t *testing.T, at endpoint) {
	t.Helper()
	type form struct{ accept, kind string }
	forms := []form{{asOneMetadata, "PartialObjectMetadata"}, {asTable, "Table"}}
	if at.metadata {
		forms = forms[:1]
	}
	version := at.list(t, "").Metadata.ResourceVersion
	var watches []*stream
	for _, f := range forms {
		for range 2 {
			watches = append(watches, at.watchAs(t, f.accept, "resourceVersion", version), at.watch(t, "resourceVersion", version))
		}
	}
	name := "form-" + version
	at.create(t, name)
	at.remove(t, name)
	for _, kind := range []string{"ADDED", "DELETED"} {
		n := 0
		for _, f := range forms {
			for range 2 {
				formed, plain := watches[n].next(), watches[n+1].next()
				n += 2
				require.Equal(t, kind, formed.Type)
				require.Equal(t, f.kind, formed.Object.Kind)
				require.Equal(t, kind+" "+name, plain.String())
				require.Equal(t, at.metadata, plain.Object.Kind == "PartialObjectMetadata", plain.Object.Kind)
			}
		}
	}
}

// testNewResource checks that the first request for a new resource waits for its cache.
func testNewResource(t *testing.T, e *kit.Env) {
	shard := e.Shard(0)
	cluster := e.WorkspaceOn("root", "listwatch-new", "root").Spec.Cluster
	for n := range 3 {
		definition := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"fresh%[1]ds.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"fresh%[1]ds","singular":"fresh%[1]d","kind":"Fresh%[1]d","listKind":"Fresh%[1]dList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, n)
		createObject(t, shard, "/clusters/"+cluster+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
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
