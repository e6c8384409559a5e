package mcprovider_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client"
)

// exclusive fails the test if two replicas work in one logical cluster at a time.
func exclusive(t *testing.T, replica string, working *sync.Map, of mcreconcile.Reconciler) mcreconcile.Reconciler {
	t.Helper()
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		if other, busy := working.LoadOrStore(request.ClusterName, replica); busy && other != replica {
			t.Errorf("%s works in %s while %s does", replica, request.ClusterName, other)
		}
		defer working.Delete(request.ClusterName)
		return of.Reconcile(ctx, request)
	})
}

// testRing has two replicas share the logical clusters, each of which has a ConfigMap
// default/a whose content put changes.
func testRing(t *testing.T, options mcprovider.Options, names []logicalcluster.Name, put func(logicalcluster.Name, string)) {
	t.Helper()
	options.NoEngage = true
	reach, err := client.NewFactory(options.Config)
	require.NoError(t, err)
	t.Cleanup(reach.CloseIdleConnections)
	leases := reach.Cluster(logicalcluster.NewPath("root"))
	var working sync.Map
	// all have the content by one of the replicas, and each replica does some.
	worked := func(what, content string, replicas ...*replica) {
		t.Helper()
		eventually(t, what, func() bool {
			some := map[*replica]bool{}
			for _, name := range names {
				by := 0
				for _, r := range replicas {
					if _, err := r.provider.Get(t.Context(), multicluster.ClusterName(name)); err == nil && r.get(requestOf(name, "default", "a")) == content {
						some[r] = true
						by++
					}
				}
				if by != 1 {
					return false
				}
			}
			return len(some) == len(replicas)
		})
	}
	first := startReplica(t, "first", options, leases, &working)
	worked("one does all", "first", first)
	second := startReplica(t, "second", options, leases, &working)
	worked("the second one does what comes to it, though nothing has changed", "first", first, second)
	for _, name := range names {
		put(name, "second")
	}
	worked("each does its part", "second", first, second)
	for _, name := range names {
		_, one := first.provider.Get(t.Context(), multicluster.ClusterName(name))
		_, other := second.provider.Get(t.Context(), multicluster.ClusterName(name))
		require.False(t, one == nil && other == nil, "%s is both replicas'", name)
		refused, holder := errors.Join(one, other), first
		if one != nil {
			holder = second
		}
		require.ErrorIs(t, refused, mcprovider.ErrNotOwned)
		require.ErrorIs(t, refused, multicluster.ErrClusterNotFound)
		c, err := holder.provider.Get(t.Context(), multicluster.ClusterName(name))
		require.NoError(t, err)
		require.NoError(t, c.GetCache().List(t.Context(), &corev1.ConfigMapList{}))
	}
	first.stop()
	worked("the second one does all", "second", second)
}
