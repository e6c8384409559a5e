package tenancy

import (
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/background"
)

// TestReplicasOfTypes checks which type is used if several shards have one at the same path.
func TestReplicasOfTypes(t *testing.T) {
	created := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	meta := func(shard, cluster, path, name string, age time.Duration) metav1.ObjectMeta {
		annotations := map[string]string{logicalcluster.AnnotationKey: cluster}
		if path != "" {
			annotations[core.LogicalClusterPathAnnotationKey] = path
		}
		if shard != "" {
			annotations[request.ShardAnnotation] = shard
		}
		return metav1.ObjectMeta{Name: name, Annotations: annotations, CreationTimestamp: metav1.NewTime(created.Add(-age))}
	}
	here, cache := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	wt := func(server *clienttest.Server, shard, cluster, path, name string, age time.Duration) {
		server.Put(t, kinds.WorkspaceTypes.GroupVersionResource, &tenancyv1alpha1.WorkspaceType{ObjectMeta: meta(shard, cluster, path, name, age)})
	}
	lc := func(cluster, path string, age time.Duration, edit ...func(*corev1alpha1.LogicalCluster)) {
		obj := &corev1alpha1.LogicalCluster{ObjectMeta: meta("", cluster, path, corev1alpha1.LogicalClusterName, age)}
		for _, f := range edit {
			f(obj)
		}
		here.Put(t, kinds.LogicalClusters.GroupVersionResource, obj)
	}
	deleting := func(obj *metav1.ObjectMeta) {
		obj.DeletionTimestamp, obj.Finalizers = &metav1.Time{Time: created}, []string{"x/y"}
	}
	for _, name := range []string{"blue", "green", "leaving", "self"} {
		shard := &corev1alpha1.Shard{ObjectMeta: meta("root", "root", "", name, 0)}
		if name == "leaving" {
			deleting(&shard.ObjectMeta)
		}
		cache.Put(t, kinds.Shards.GroupVersionResource, shard)
	}
	// Many copies, so that an arbitrary choice is wrong in most runs.
	for _, removed := range []string{"a", "b", "c", "removed", "z"} {
		wt(cache, removed, "aaaa", "root:org", "kind", 0)
		wt(cache, removed, "aaaa", "root:org", "removed", 0)
	}
	wt(cache, "leaving", "aaaa", "root:org", "kind", 0)
	wt(cache, "green", "aaaa", "root:org", "kind", time.Hour)
	wt(cache, "blue", "aaaa", "root:org", "kind", time.Hour)
	wt(cache, "self", "aaaa", "root:org", "kind", 0)
	wt(cache, "self", "aaaa", "root:org", "mine", 0)
	wt(cache, "leaving", "aaaa", "root:org", "moving", 0)
	wt(cache, "blue", "aaaa", "root:org", "young", time.Hour)
	wt(cache, "green", "bbbb", "root:org", "young", time.Minute)
	wt(cache, "green", "llll", "root:local", "orphan", 0)
	// On the shard itself, the annotation is ignored; the path leads to the newest logical cluster.
	lc("llll", "root:local", time.Hour, func(obj *corev1alpha1.LogicalCluster) { deleting(&obj.ObjectMeta) })
	lc("mmmm", "root:local", 2*time.Hour)
	lc("nnnn", "root:local", 3*time.Hour)
	for _, cluster := range []string{"llll", "mmmm", "nnnn"} {
		wt(here, "forged", cluster, "", "own", 0)
	}

	factory := func(server *clienttest.Server) *client.Factory {
		f, err := client.NewFactory(server.ClientConfig())
		require.NoError(t, err)
		t.Cleanup(f.CloseIdleConnections)
		return f
	}
	byPath := map[string]client.IndexFunc[*tenancyv1alpha1.WorkspaceType]{PathIndex: IndexTypeByPath}
	own, others := factory(here), factory(cache)
	clusters := kinds.LogicalClusters.Informer(own.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{PathIndex: IndexByPath},
	})
	shards := kinds.Shards.Informer(others.Shard("root").Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{})
	types := replicas.NewDual(
		kinds.WorkspaceTypes.Informer(own.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{Indexers: byPath}),
		kinds.WorkspaceTypes.Informer(others.Shard("*").Wildcard(), replicas.OfOthers("self", client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{Indexers: byPath})),
		replicas.DualOptions{ShardState: ShardStateOf(shards)},
	)
	group := &client.Group{}
	group.Add(clusters, shards, types.Own(), types.Others())
	background.Run(t.Context(), t, group.Run)
	require.NoError(t, group.WaitForSync(t.Context()))
	lookup := NewTypeLookup(clusters, types)

	for id, want := range map[string]string{
		"root:org:kind": "blue aaaa", "root:org:removed": "", "root:org:mine": "", "root:org:moving": "leaving aaaa", "root:org:young": "green bbbb",
		"aaaa:kind": "blue aaaa", "aaaa:young": "blue aaaa",
		"root:local:own": "forged mmmm", "root:local:orphan": "", "llll:orphan": "", "llll:own": "forged llll",
	} {
		path, name := logicalcluster.NewPath(id).Split()
		for range 10 {
			got := ""
			if found, ok := lookup(path, tenancyv1alpha1.WorkspaceTypeName(name)); ok {
				got = found.Annotations[request.ShardAnnotation] + " " + logicalcluster.From(found).String()
			}
			require.Equal(t, want, got, id)
		}
	}
}
