package cacheserver_test

import (
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationmarks"
)

// shardView is what a shard sees of others' workspace types.
type shardView struct {
	*client.Dual[*tenancyv1alpha1.WorkspaceType]
}

// newShardView reads a cache server as shards do.
func newShardView(b *testing.B, name string, own *client.Factory, cache *cacheServer) shardView {
	b.Helper()
	caches, err := client.NewCaches(replicationmarks.Read, client.Cache{Name: "cache", Factory: cache.f})
	require.NoError(b, err)
	others := caches.Factory()
	shards := kinds.Shards.Informer(others.Shard(corev1alpha1.RootShard).Cluster(rootPath), client.InformerOptions[*corev1alpha1.Shard]{Transform: client.ShowDeletion[*corev1alpha1.Shard]})
	standing := tenancy.Standing(shards)
	caches.SetRemoved(func(shard string) bool { return standing(shard) == client.Gone })
	marks := replicationmarks.Marks.Informer(others.Shard("*").Wildcard(), client.InformerOptions[*replicationmarks.ReplicationMark]{})
	note := func(mark *replicationmarks.ReplicationMark) { caches.Note(marks.KeyOf(mark).Shard, mark.Said()) }
	marks.AddEventHandler(client.Handler[*replicationmarks.ReplicationMark]{
		OnAdd:    func(mark *replicationmarks.ReplicationMark, _ bool) { note(mark) },
		OnUpdate: func(_, mark *replicationmarks.ReplicationMark) { note(mark) },
	})
	options := client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{}
	view := shardView{client.NewDual(kinds.WorkspaceTypes.Informer(own.Wildcard(), options), kinds.WorkspaceTypes.Informer(others.Shard("*").Wildcard(), options), client.DualOptions{Self: name, Standing: standing})}
	start(b, "", caches.Run)
	start(b, "", marks.Run)
	start(b, "", shards.Run)
	start(b, "", view.Run)
	return view
}

// found returns how many of the replicas of a benchmark it lists in the first logical cluster in which it lists any.
func (v shardView) found() int {
	for n := 0; n < *benchObjects; n += perCluster {
		if found := len(v.In(typeCluster(n))); found > 0 {
			return found
		}
	}
	return 0
}

// BenchmarkRemovedShard deletes the Shard of a shard that has 10,000 replicas of 4 KiB, in root, and measures until none of three
// shards that read them finds one, by lists and by look-ups:
//
//	go test ./pkg/cacheserver -run XXX -bench RemovedShard -benchtime 3x [-objects 1000]
func BenchmarkRemovedShard(b *testing.B) {
	cache, root := newCacheServer(b), newTestShard(b, corev1alpha1.RootShard)
	registered := in(b, root.f, corev1alpha1.RootShard, shardsGVR)
	shard := object(shardsGVR, "Shard", corev1alpha1.RootShard, map[string]any{"baseURL": "https://x"})
	shard.SetAnnotations(map[string]string{tenancy.MarksAnnotation: "true"})
	create(b, registered, shard)
	controller, err := replication.New(replicationConfig(b, root, cache))
	require.NoError(b, err)
	start(b, "", controller.Run)

	pushTypes(b, cache, 0, *benchObjects)
	views := make([]shardView, 3)
	for n, name := range []string{"blue", "green", "red"} {
		views[n] = newShardView(b, name, root.f, cache)
	}
	all := func(is func(v shardView) bool) func() bool {
		return func() bool {
			for _, v := range views {
				if !is(v) {
					return false
				}
			}
			return true
		}
	}
	var until time.Duration
	for b.Loop() {
		b.StopTimer()
		create(b, registered, object(shardsGVR, "Shard", "amber", map[string]any{"baseURL": "https://x"}))
		eventually(b, "the replicas are seen", all(func(v shardView) bool {
			return v.Others().Lister().Len() == *benchObjects && v.found() > 0
		}))
		b.StartTimer()
		begin := time.Now()
		require.NoError(b, registered.Delete(b.Context(), "amber", metav1.DeleteOptions{}))
		require.Eventually(b, all(func(v shardView) bool { return v.found() == 0 }), deadline, time.Millisecond)
		until += time.Since(begin)
		b.StopTimer()
		for _, v := range views {
			for n := range *benchObjects {
				_, err := v.Get(typeCluster(n), "", typeName(n))
				require.Error(b, err)
			}
		}
		b.StartTimer()
	}
	b.ReportMetric(until.Seconds()*1000/float64(b.N), "ms/out-of-views")
}
