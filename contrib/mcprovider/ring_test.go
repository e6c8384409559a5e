package mcprovider_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mchandler "sigs.k8s.io/multicluster-runtime/pkg/handler"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/test/harness"
)

// exclusive fails the test if two replicas work in a logical cluster simultaneously.
func exclusive(t *testing.T, replica string, working *sync.Map, of mcreconcile.Reconciler) mcreconcile.Reconciler {
	t.Helper()
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		if other, busy := working.LoadOrStore(request.ClusterName, replica); busy && other != replica {
			t.Errorf("%s works in %s at the same time as %s", replica, request.ClusterName, other)
		}
		defer working.Delete(request.ClusterName)
		return of.Reconcile(ctx, request)
	})
}

// notOwned checks that a logical cluster cannot be used anymore, by any method.
func notOwned(t *testing.T, c cluster.Cluster) {
	t.Helper()
	key, mine := ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"}}
	configured, err := ctrlclient.New(c.GetConfig(), ctrlclient.Options{Scheme: c.GetScheme(), Mapper: c.GetRESTMapper()})
	require.NoError(t, err)
	for method, err := range map[string]error{
		"client, read":        c.GetClient().Get(t.Context(), key, &corev1.ConfigMap{}),
		"client, write":       c.GetClient().Create(t.Context(), mine.DeepCopy()),
		"cache, read":         c.GetCache().Get(t.Context(), key, &corev1.ConfigMap{}),
		"cache, list":         c.GetCache().List(t.Context(), &corev1.ConfigMapList{}),
		"API reader":          c.GetAPIReader().Get(t.Context(), key, &corev1.ConfigMap{}),
		"configuration":       configured.Get(t.Context(), key, &corev1.ConfigMap{}),
		"configuration, list": configured.List(t.Context(), &corev1.ConfigMapList{}),
	} {
		require.ErrorIs(t, err, mcprovider.ErrNotOwned, method)
	}
}

// testRing divides logical clusters among two replicas. Each has a ConfigMap default/a that is changed by put.
func testRing(t *testing.T, options mcprovider.Options, names []logicalcluster.Name, put func(logicalcluster.Name, string)) {
	t.Helper()
	leases := harness.NewFactory(t, options.Config).Cluster(logicalcluster.NewPath("root"))
	var working sync.Map
	// Each logical cluster must be read by one replica, and each replica must have some.
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
	worked("one replica reads all", "first", first)
	got := map[logicalcluster.Name]cluster.Cluster{}
	for _, name := range names {
		c, err := first.provider.Get(t.Context(), multicluster.ClusterName(name))
		require.NoError(t, err)
		got[name] = c
	}
	second := startReplica(t, "second", options, leases, &working)
	worked("the second replica reads reassigned logical clusters, although they have not changed", "first", first, second)
	for _, name := range names {
		put(name, "second")
	}
	worked("each replica reads its own logical clusters", "second", first, second)
	for _, name := range names {
		_, one := first.provider.Get(t.Context(), multicluster.ClusterName(name))
		_, other := second.provider.Get(t.Context(), multicluster.ClusterName(name))
		require.False(t, one == nil && other == nil, "both replicas have %s", name)
		refused, holder := errors.Join(one, other), first
		if one != nil {
			holder = second
			notOwned(t, got[name])
		}
		require.ErrorIs(t, refused, mcprovider.ErrNotOwned)
		require.ErrorIs(t, refused, multicluster.ErrClusterNotFound)
		c, err := holder.provider.Get(t.Context(), multicluster.ClusterName(name))
		require.NoError(t, err)
		require.NoError(t, c.GetCache().List(t.Context(), &corev1.ConfigMapList{}))
		require.NoError(t, c.GetAPIReader().Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{}))
	}
	// The first replica must read them again.
	for _, name := range names {
		if _, err := second.provider.Get(t.Context(), multicluster.ClusterName(name)); err == nil {
			first.forget(requestOf(name, "default", "a"))
		}
	}
	second.stop()
	worked("the first replica reads reassigned logical clusters again, although they have not changed", "second", first)
}

// TestLoading checks a replica that cannot load all objects. Handlers of a Source must receive logical clusters only after they have been
// assigned.
func TestLoading(t *testing.T) {
	t.Parallel()
	s := newServers(t, 2)
	var names []logicalcluster.Name
	for n := range 20 {
		names = append(names, logicalcluster.Name(fmt.Sprint("cluster", n)))
		s.cluster(t, 0, names[n])
		s.put(t, 0, names[n], "default", "a", "first")
	}
	reach := harness.NewFactory(t, s[0].ClientConfig())
	member := func(name string) (*ring.Ring, *mcprovider.Provider) {
		config := quick(name, reach.Cluster(logicalcluster.NewPath("root")))
		config.LoadTimeout = time.Hour
		r, err := ring.New(config)
		require.NoError(t, err)
		options := s.options()
		options.Ring, options.NoEngage = r, true
		p, err := mcprovider.New(options)
		require.NoError(t, err)
		run(t, func(ctx context.Context) error { return p.Start(ctx, nil) })
		return r, p
	}
	first, _ := member("first")
	run(t, func(ctx context.Context) error { return first.Run(ctx) })
	within := func(ranges client.Ranges) map[multicluster.ClusterName]bool {
		some := map[multicluster.ClusterName]bool{}
		for _, name := range names {
			if ranges.Contains(&metav1.ObjectMeta{Annotations: in(name)}) {
				some[multicluster.ClusterName(name)] = true
			}
		}
		return some
	}
	eventually(t, "one replica has all", func() bool {
		owned, _ := first.Ranges()
		return len(within(owned)) == len(names)
	})

	s[1].Fail(500)
	second, p := member("second")
	queue := func() mcprovider.Queue {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[mcreconcile.Request]())
		t.Cleanup(q.ShutDown)
		return q
	}
	var mu sync.Mutex
	given := map[multicluster.ClusterName]bool{}
	require.NoError(t, p.Source(&corev1.ConfigMap{}, mcprovider.WithHandler(func(name multicluster.ClusterName, c cluster.Cluster) mchandler.EventHandler {
		if err := c.GetCache().Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{}); err != nil {
			t.Errorf("a handler receives %s: %v", name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		given[name] = true
		return mchandler.EnqueueRequestForObject(name, c)
	})).Start(t.Context(), queue()))
	all := queue() // also receives loaded objects, after the handler
	require.NoError(t, p.Source(&corev1.ConfigMap{}).Start(t.Context(), all))
	run(t, func(ctx context.Context) error { return second.Run(ctx) })
	var loading map[multicluster.ClusterName]bool
	eventually(t, "logical clusters are being loaded", func() bool {
		_, coming := second.Ranges()
		loading = within(coming)
		return len(loading) > 0
	})
	for known := map[multicluster.ClusterName]bool{}; len(known) < len(loading); {
		request, _ := all.Get()
		all.Done(request)
		known[request.ClusterName] = true
	}
	mu.Lock()
	require.Empty(t, given)
	mu.Unlock()

	s[1].Fail(0)
	eventually(t, "handlers receive assigned logical clusters", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(given) == len(loading)
	})
}
