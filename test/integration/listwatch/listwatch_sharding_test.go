package listwatch

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	shardSelector = "shardSelector"

	asTable         = "application/json;as=Table;g=meta.k8s.io;v=v1"
	asMetadata      = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asOneMetadata   = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asMetadataProto = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

func testSharding(t *testing.T, e *kit.Env, all []endpoint) {
	t.Helper()
	t.Run("OpenAPI offers the parameter", func(t *testing.T) {
		for _, document := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1"} {
			body := kit.RequireCode(t, e.Proxy(), kit.Request{Path: "/clusters/root:listwatch" + document, Header: http.Header{"Accept": {"application/json"}}}, http.StatusOK)
			require.Contains(t, string(body), shardSelector, document)
			require.Contains(t, string(body), "object.metadata.cluster", document)
		}
	})
	eachEndpoint(t, all, func(t *testing.T, at endpoint) {
		t.Run("lists", func(t *testing.T) { testShardedLists(t, at) })
		t.Run("combinations", func(t *testing.T) { testShardedCombinations(t, at) })
		for _, by := range []string{"uid", "cluster"} {
			t.Run("watches by "+by, func(t *testing.T) { testShardedWatches(t, at, by) })
		}
	})
}

// testShardedLists checks that each form of a sharded list specifies its part, and that the parts make up the whole list.
func testShardedLists(t *testing.T, at endpoint) {
	whole := at.list(t, "")
	require.Nil(t, whole.Metadata.ShardInfo)
	var union []string
	for _, selector := range []string{lowerHalf, upperHalf} {
		part := at.list(t, "", "shardSelector", selector, "resourceVersion", whole.Metadata.ResourceVersion, "resourceVersionMatch", "Exact")
		require.NotNil(t, part.Metadata.ShardInfo)
		canonical := part.Metadata.ShardInfo.Selector
		require.Equal(t, canonical, at.list(t, "", "shardSelector", canonical).Metadata.ShardInfo.Selector, "the canonical form is a selector")
		union = append(union, part.names()...)

		page := at.list(t, "", "shardSelector", selector, "limit", "1")
		require.Nil(t, page.Metadata.RemainingItemCount)
		require.Equal(t, canonical, page.Metadata.ShardInfo.Selector)

		if !at.metadata {
			table := at.list(t, asTable, "shardSelector", selector)
			require.Equal(t, "Table", table.Kind)
			require.NotNil(t, table.Metadata.ShardInfo)
			require.Equal(t, canonical, table.Metadata.ShardInfo.Selector)
			require.Len(t, table.Rows, len(part.Items))
		}

		metadata := at.list(t, asMetadata, "shardSelector", selector)
		require.Equal(t, "PartialObjectMetadataList", metadata.Kind)
		require.NotNil(t, metadata.Metadata.ShardInfo)
		require.Equal(t, canonical, metadata.Metadata.ShardInfo.Selector)
		require.ElementsMatch(t, part.names(), metadata.names())

		inProtobuf := protobufMetadata(t, at, "shardSelector", selector)
		require.NotNil(t, inProtobuf.ShardInfo)
		require.Equal(t, canonical, inProtobuf.ShardInfo.Selector)
		require.Len(t, inProtobuf.Items, len(part.Items))
	}
	require.ElementsMatch(t, whole.names(), union)
	require.NotNil(t, at.list(t, "", "shardSelector", lowerHalf, "resourceVersion", "0").Metadata.ShardInfo)

	// Lists without a selector have no shard info, in every form.
	if !at.metadata {
		require.Nil(t, at.list(t, asTable).Metadata.ShardInfo)
	}
	require.Nil(t, at.list(t, asMetadata).Metadata.ShardInfo)
}

// testShardedCombinations checks that shard selectors with several ranges and any key combine with other selectors and with pages.
func testShardedCombinations(t *testing.T, at endpoint) {
	whole := at.list(t, "")
	for _, by := range []string{"uid", "namespace", "cluster"} {
		outer := kit.ShardRange(by, 0, 1) + " || " + kit.ShardRange(by, 3, 4)
		var union []string
		for _, selector := range []string{outer, kit.ShardRange(by, 1, 3)} {
			part := at.list(t, "", "shardSelector", selector)
			union = append(union, part.names()...)
			paged := []string{}
			for token, more := "", true; more; more = token != "" {
				page := at.list(t, "", "shardSelector", selector, "limit", "2", "continue", token)
				paged = append(paged, page.names()...)
				token = page.Metadata.Continue
				require.Equal(t, part.Metadata.ShardInfo, page.Metadata.ShardInfo)
			}
			require.Equal(t, part.names(), paged)
		}
		require.ElementsMatch(t, whole.names(), union)

		var found []string
		for _, selector := range []string{outer, kit.ShardRange(by, 1, 3)} {
			part := at.list(t, "", "shardSelector", selector, "fieldSelector", "metadata.name=listed-3", "labelSelector", "no!=label")
			require.NotNil(t, part.Metadata.ShardInfo)
			found = append(found, part.names()...)
			require.Empty(t, at.list(t, "", "shardSelector", selector, "labelSelector", "no=label").Items)
		}
		require.NotEmpty(t, found)
		require.ElementsMatch(t, at.list(t, "", "fieldSelector", "metadata.name=listed-3").names(), found)
	}
}

func protobufMetadata(t *testing.T, at endpoint, query ...string) *metav1.PartialObjectMetadataList {
	t.Helper()
	body := kit.RequireCode(t, at.config, kit.Request{Path: at.with(query...), Header: http.Header{"Accept": {asMetadataProto}, "Accept-Encoding": {"gzip"}}}, http.StatusOK)
	scheme := runtime.NewScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	obj, _, err := protobuf.NewSerializer(scheme, scheme).Decode(body, nil, nil)
	require.NoError(t, err)
	require.IsType(t, &metav1.PartialObjectMetadataList{}, obj)
	return obj.(*metav1.PartialObjectMetadataList)
}

// testShardedWatches checks that the parts of streamed lists make up the whole list, and that the bookmark after the initial events
// specifies the part.
func testShardedWatches(t *testing.T, at endpoint, by string) {
	whole := at.list(t, "")
	var union []string
	halves := []string{kit.ShardRange(by, 0, 2), kit.ShardRange(by, 2, 4)}
	for _, selector := range halves {
		canonical := at.list(t, "", "shardSelector", selector).Metadata.ShardInfo.Selector
		events := at.watch(t, "shardSelector", selector, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true").until(isInitialEnd)
		bookmark := events[len(events)-1]
		for _, e := range events[:len(events)-1] {
			require.Equal(t, "ADDED", e.Type)
			union = append(union, e.Object.Metadata.Annotations["kcp.io/cluster"]+"|"+e.Object.Metadata.Namespace+"/"+e.Object.Metadata.Name)
		}
		t.Run("shard info", func(t *testing.T) {
			require.Equal(t, canonical, bookmark.Object.Metadata.Annotations["shardplane.io/shard-info"])
		})
	}
	require.ElementsMatch(t, whole.names(), union)

	unsharded := at.watch(t, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true").until(isInitialEnd)
	require.NotContains(t, unsharded[len(unsharded)-1].Object.Metadata.Annotations, "shardplane.io/shard-info")
	require.Len(t, unsharded, len(whole.Items)+1)

	testShardedEvents(t, at, halves)

	whole = at.list(t, "")
	if at.one {
		lower := at.list(t, "", "shardSelector", halves[0])
		kit.RequireCode(t, at.config, kit.Request{Method: http.MethodDelete, Path: at.with("shardSelector", halves[0], "dryRun", "All")}, http.StatusOK)
		upper := at.list(t, "", "shardSelector", halves[1])
		require.Len(t, slices.Concat(lower.names(), upper.names()), len(whole.Items), "a dry run deletes nothing")
	}
}

// testShardedEvents checks that watches of the parts, from a resource version, receive each event of a watch of the whole once.
func testShardedEvents(t *testing.T, at endpoint, halves []string) {
	t.Helper()
	version := at.list(t, "").Metadata.ResourceVersion
	whole := at.watch(t, "resourceVersion", version)
	parts := []*stream{
		at.watch(t, "resourceVersion", version, "shardSelector", halves[0]),
		at.watch(t, "resourceVersion", version, "shardSelector", halves[1]),
	}
	var want, got []string
	seen := func(e event) string { return e.Object.Metadata.ResourceVersion + e.Type + e.Object.Metadata.Name }
	const created = 6
	for n := range created {
		name := fmt.Sprintf("sharded-%s-%d", version, n)
		at.create(t, name)
		at.remove(t, name)
	}
	for range 2 * created {
		want = append(want, seen(whole.next()))
		got = append(got, seen(nextOf(t, parts[0], parts[1])))
	}
	require.ElementsMatch(t, want, got)
}

// testShardedDeletion checks that a selector limits the deletion of a collection. Only the upper halves of the collections remain.
func testShardedDeletion(t *testing.T, all []endpoint) {
	t.Helper()
	eachEndpoint(t, all, func(t *testing.T, at endpoint) {
		if !at.one || at.same {
			return
		}
		others := []string{"fieldSelector", "metadata.name!=" + kit.RootCAConfigMap} // would be created again
		testDeletionElsewhere(t, at)
		upper := at.list(t, "", append(others, "shardSelector", upperHalf)...)
		lower := slices.Concat(others, []string{"shardSelector", lowerHalf})
		kit.RequireCode(t, at.config, kit.Request{Method: http.MethodDelete, Path: at.with(lower...)}, http.StatusOK)
		require.ElementsMatch(t, upper.names(), at.list(t, "", others...).names())
		require.Empty(t, at.list(t, "", lower...).Items)
	})
}

// testDeletionElsewhere checks that a selector that does not match the logical cluster deletes nothing.
func testDeletionElsewhere(t *testing.T, at endpoint) {
	t.Helper()
	whole := at.list(t, "")
	require.NotEmpty(t, whole.Items)
	selector := kit.ShardRange("cluster", 0, 2)
	if len(at.list(t, "", "shardSelector", selector).Items) > 0 {
		selector = kit.ShardRange("cluster", 2, 4)
	}
	kit.RequireCode(t, at.config, kit.Request{Method: http.MethodDelete, Path: at.with("shardSelector", selector)}, http.StatusOK)
	require.Equal(t, whole.names(), at.list(t, "").names())
}

// testParts divides the objects of a shard among two informers by logical cluster, and changes the ranges.
func testParts(t *testing.T, e *kit.Env) {
	t.Helper()
	of := func(options client.InformerOptions[*corev1.Namespace]) *client.Informer[*corev1.Namespace] {
		informer := kinds.Namespaces.Informer(e.ShardClients["root"].Wildcard(), options)
		go func() { _ = informer.Run(t.Context()) }()
		e.Eventually("the informer syncs", informer.HasSynced)
		return informer
	}
	part := func(i, n int) client.Ranges {
		ranges, err := client.PartOf(client.ByCluster, i, n)
		require.NoError(t, err)
		return ranges
	}
	whole := of(client.InformerOptions[*corev1.Namespace]{})
	first, second := client.NewChangingRanges(part(0, 2)), client.NewChangingRanges(part(1, 2))
	parts := []*client.Informer[*corev1.Namespace]{
		of(client.InformerOptions[*corev1.Namespace]{Ranges: first}), of(client.InformerOptions[*corev1.Namespace]{Ranges: second, DisableWatchList: true}),
	}
	divided := func(change string) {
		e.Eventually("each namespace is in one informer "+change, func() bool {
			var found []client.Key
			for _, informer := range parts {
				if informer.Filtered() != client.FilteredByServer {
					return false // set by the first list
				}
				for _, ns := range informer.Lister().List(nil) {
					found = append(found, client.KeyOf(ns))
				}
			}
			all := whole.Lister().List(nil)
			return len(all) == len(found) && !slices.ContainsFunc(all, func(ns *corev1.Namespace) bool { return !slices.Contains(found, client.KeyOf(ns)) })
		})
	}
	divided("initially")
	for _, informer := range parts {
		require.Zero(t, informer.Discarded())
	}
	quarter, err := client.NewRanges(client.ByCluster, client.Range{First: 1 << 62, Last: ^uint64(0)})
	require.NoError(t, err)
	first.Set(part(0, 4))
	second.Set(quarter)
	e.Eventually("the new ranges are loaded", func() bool {
		return parts[0].LoadedRanges().Equal(part(0, 4)) && parts[1].LoadedRanges().Equal(quarter)
	})
	divided("after the change of the ranges")
}
