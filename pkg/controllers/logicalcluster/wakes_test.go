package logicalcluster

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

type keyQueue chan client.Key

func (q keyQueue) Add(key client.Key) { q <- key }

func (q keyQueue) AddAfter(key client.Key, _ time.Duration) { q <- key }

func (keyQueue) Drop(client.Key) {}

// TestDeletionRounds: a logical cluster that is being deleted is requeued after writes of others and after the last object
// of a kind was deleted.
func TestDeletionRounds(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	local, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	defer local.CloseIdleConnections()
	clusters := kinds.LogicalClusters.Informer(local.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{})
	bindings := kinds.APIBindings.Informer(local.Wildcard(), client.InformerOptions[*apisv1alpha2.APIBinding]{})

	put := func(name string, change func(*corev1alpha1.LogicalCluster)) (version int) {
		lc := newCluster(deleted(0), change)
		lc.Annotations, lc.UID = map[string]string{logicalcluster.AnnotationKey: name}, ""
		version, err := strconv.Atoi(server.Put(t, kinds.LogicalClusters.GroupVersionResource, lc))
		require.NoError(t, err)
		return version
	}
	for _, in := range [][2]string{{"abc", "one"}, {"abc", "two"}, {"more", "only"}} {
		server.Put(t, kinds.APIBindings.GroupVersionResource, &apisv1alpha2.APIBinding{ObjectMeta: metav1.ObjectMeta{Name: in[1], Annotations: map[string]string{logicalcluster.AnnotationKey: in[0]}}})
	}
	put("abc", phase("Ready"))
	last := put("alive", func(lc *corev1alpha1.LogicalCluster) { lc.DeletionTimestamp = nil })

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- clusters.Run(ctx) }()
	go func() { ended <- bindings.Run(ctx) }()
	require.NoError(t, clusters.WaitForSync(ctx))
	require.NoError(t, bindings.WaitForSync(ctx))
	r, queue := &deletionReconciler{}, make(keyQueue, 100)
	for _, source := range []reconcile.Source[client.Key]{r.deletions(clusters), lastOf(bindings, clusters.Lister())} {
		stop, err := source(ctx, queue)
		require.NoError(t, err)
		defer stop()
	}
	expect := func(cluster string) {
		t.Helper()
		require.Eventually(t, func() bool { return len(queue) > 0 }, time.Minute, time.Millisecond, cluster)
		require.Equal(t, client.Key{Cluster: logicalcluster.Name(cluster), Name: corev1alpha1.LogicalClusterName}, <-queue)
	}
	expect("abc")

	// The own write is observed, and then another one.
	known, err := clusters.Lister().Get(key)
	require.NoError(t, err)
	written := known.DeepCopy()
	written.ResourceVersion = strconv.Itoa(last + 1)
	r.latest.Wrote(written)
	require.Equal(t, last+1, put("abc", phase("Deleting")))
	put("more", phase("Deleting"))
	expect("more")
	put("abc", phase("Deleting"))
	expect("abc")

	unbind := func(cluster logicalcluster.Name, name string) {
		server.Delete(t, kinds.APIBindings.GroupVersionResource, "", cluster, "", name)
	}
	unbind("abc", "one")
	unbind("more", "only")
	expect("more")
	unbind("abc", "two")
	expect("abc")
	server.Delete(t, kinds.LogicalClusters.GroupVersionResource, "", "more", "", corev1alpha1.LogicalClusterName)
	expect("more")
	require.Empty(t, queue)
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
}
