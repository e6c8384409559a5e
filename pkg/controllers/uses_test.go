package controllers

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

type consumers struct {
	APIs

	mu    sync.Mutex
	all   map[client.Key]bool
	calls []func(client.Key)
}

func (c *consumers) Consumed(export client.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[export]
}

func (c *consumers) FollowConsumers(f func(client.Key)) (stop func()) {
	c.mu.Lock()
	c.calls = append(c.calls, f)
	all := maps.Clone(c.all)
	c.mu.Unlock()
	for export := range all {
		f(export)
	}
	return func() {}
}

func (c *consumers) set(consumed bool, export client.Key) {
	c.mu.Lock()
	if delete(c.all, export); consumed {
		c.all[export] = true
	}
	calls := c.calls
	c.mu.Unlock()
	for _, f := range calls {
		f(export)
	}
}

// TestUsesOnTheCacheServer: the cache server contains the uses of exports and subtrees, also after an outage or data loss.
func TestUsesOnTheCacheServer(t *testing.T) {
	factory := func(server *clienttest.Server) *client.Factory {
		f, err := client.NewFactory(server.ClientConfig())
		require.NoError(t, err)
		t.Cleanup(f.CloseIdleConnections)
		return f
	}
	cache := clienttest.New(t, kinds.Scheme)
	cache.Fail(http.StatusServiceUnavailable)
	d := Deps{Sources: Sources{ShardName: "blue", Cache: factory(cache)}}
	export := func(name string) client.Key { return client.Key{Cluster: "p", Name: name} }
	uses := &consumers{all: map[client.Key]bool{export("one"): true}}
	d.APIs = uses

	here := clienttest.New(t, kinds.Scheme)
	here.Put(t, kinds.LogicalClusters.GroupVersionResource, &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{
			logicalcluster.AnnotationKey: "top", core.LogicalClusterPathAnnotationKey: "root:top", tenancy.MaxSubtreeObjectsAnnotation: "10",
		},
	}})
	clusters := kinds.LogicalClusters.Informer(factory(here).Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{subtrees.Index: subtrees.IndexLimited},
	})
	d.Subtrees = subtrees.NewSubtreeSums(subtrees.Config{
		Self: "blue", LogicalClusters: clusters, ShardState: func(string) replicas.ShardState { return replicas.Active },
		Stored: func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) {
			return maps.All(map[logicalcluster.Name]subtrees.Amount{"top": {Objects: 7}}), true
		},
	})
	exportUse, err := newExportUse(d)
	require.NoError(t, err)
	subtreeUsage, err := newSubtreeUsage(d)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, run := range []func(context.Context) error{clusters.Run, d.Subtrees.Run, exportUse.Owns[0].Run, exportUse.Run, subtreeUsage.Owns[0].Run, subtreeUsage.Run} {
		running.Go(func() { assert.NoError(t, run(ctx)) })
	}

	// published waits until the cache server contains exactly these uses.
	own := factory(cache).Shard("blue").Wildcard()
	published := func(want ...string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			list, err := exportuses.Uses.In(own).List(t.Context(), metav1.ListOptions{})
			require.NoError(c, err)
			var got []string
			for i := range list.Items {
				got = append(got, list.Items[i].Name)
			}
			require.Equal(c, want, got)
			usages, err := subtrees.Usages.In(own).List(t.Context(), metav1.ListOptions{})
			require.NoError(c, err)
			require.Len(c, usages.Items, 1)
			require.EqualValues(c, 7, usages.Items[0].Used.Objects)
		}, time.Minute, 20*time.Millisecond)
	}
	cache.Fail(0)
	published("one")
	uses.set(true, export("two"))
	published("one", "two")
	cache.Delete(t, exportuses.Uses.GroupVersionResource, "blue", "p", "", "one")
	cache.Delete(t, subtrees.Usages.GroupVersionResource, "blue", "top", "", corev1alpha1.LogicalClusterName)
	published("one", "two")
	uses.set(false, export("one"))
	published("two")
}
