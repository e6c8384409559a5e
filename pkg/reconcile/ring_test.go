package reconcile_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/test/background"
)

// Replicas of a controller share the logical clusters of a shard: each watches and processes only its part of the objects.
func Example_ring() {
	run := func(ctx context.Context, config *rest.Config) error {
		factory, err := client.NewFactory(config)
		if err != nil {
			return err
		}
		replicas, err := ring.New(ring.Config{
			Name: "greeter", Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default", Key: client.ByCluster,
		})
		if err != nil {
			return err
		}
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: replicas.LoadedRanges()})
		controller := reconcile.New(reconcile.Config[client.Key]{
			Name: "greeter", Gate: replicas,
			Sources: []reconcile.Source[client.Key]{
				reconcile.Keys(informer),
				reconcile.Gained(informer, replicas, func(obj *corev1.ConfigMap) []client.Key { return []client.Key{informer.KeyOf(obj)} }),
			},
			Reconcile: func(_ context.Context, key client.Key) (reconcile.Result, error) {
				_, err := informer.Lister().Get(key)
				return reconcile.Result{}, err
			},
		})
		// After ctx is done, the ranges of this replica are handed over, and it continues to work on them until then. If
		// the error is ring.ErrOverrun, exit immediately: Reconcile has not returned, and another replica is about to call
		// it.
		return replicas.Run(ctx, informer.Run, controller.Run)
	}
	_ = run
}

// TestRing: replicas of a controller start and stop. Each object is processed by one replica at a time, and again after
// each handover.
func TestRing(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: Leases expire in real time; TestModel of pkg/client/ring checks the rules with a simulated clock")
	}
	const clusters = 40
	server, elsewhere := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	put := func(n int, content string) {
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Annotations: map[string]string{logicalcluster.AnnotationKey: fmt.Sprint("cluster", n)}},
			Data:       map[string]string{"content": content},
		})
	}
	for n := range clusters {
		put(n, "first")
	}
	var (
		mu     sync.Mutex
		owners = map[client.Key]int{}    // the replica that processes it
		done   = map[client.Key]string{} // the replica and the processed content
	)
	start := func(replica int) (stop func()) {
		factory, other := factoryOf(t, server), factoryOf(t, elsewhere)
		r, err := ring.New(ring.Config{
			Name: "greeter", ID: fmt.Sprint("replica", replica), Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default", Key: client.ByCluster,
			LeaseDuration: 4 * time.Second, RenewDeadline: 2 * time.Second, RenewInterval: 300 * time.Millisecond, GracePeriod: time.Second, RebalanceDelay: 50 * time.Millisecond,
			LoadTimeout: 10 * time.Minute,
		})
		require.NoError(t, err)
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: r.LoadedRanges()})
		loading := kinds.Secrets.Informer(other.Wildcard(), client.InformerOptions[*corev1.Secret]{Ranges: r.LoadedRanges()})
		controller := reconcile.New(reconcile.Config[client.Key]{
			Name: fmt.Sprint("greeter", replica), Gate: r,
			Sources: []reconcile.Source[client.Key]{
				reconcile.Keys(informer),
				reconcile.Gained(informer, r, func(obj *corev1.ConfigMap) []client.Key { return []client.Key{informer.KeyOf(obj)} }),
			},
			Reconcile: func(_ context.Context, key client.Key) (reconcile.Result, error) {
				obj, err := informer.Lister().Get(key)
				if err != nil {
					return reconcile.Result{}, err
				}
				mu.Lock()
				defer mu.Unlock()
				if owners[key] != 0 {
					t.Errorf("%s has two workers", key)
				}
				owners[key]++
				mu.Unlock()
				<-time.After(time.Millisecond)
				mu.Lock()
				owners[key]--
				done[key] = fmt.Sprint(replica, " ", obj.Data["content"])
				return reconcile.Result{}, nil
			},
		})
		return background.Run(t.Context(), t, func(ctx context.Context) error {
			return r.Run(ctx, informer.Run, controller.Run, loading.Run)
		})
	}
	worked := func(what, content string, replicas ...int) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			by := map[string]int{}
			for _, what := range done {
				by[what]++
			}
			all := 0
			for _, replica := range replicas {
				n := by[fmt.Sprint(replica, " ", content)]
				if n == 0 {
					return false
				}
				all += n
			}
			return all == clusters
		}, time.Minute, 5*time.Millisecond, what)
	}
	stop := start(1)
	worked("the first replica processes all keys", "first", 1)
	start(2)
	worked("the second replica processes its keys although nothing has changed", "first", 1, 2)
	for n := range clusters {
		put(n, "second")
	}
	worked("each replica processes its keys", "second", 1, 2)

	elsewhere.Fail(http.StatusInternalServerError) // the second replica cannot load its ranges
	defer elsewhere.Fail(0)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	for n := range clusters {
		put(n, "third")
	}
	worked("each replica continues to process its keys", "third", 1, 2)
	elsewhere.Fail(0)
	<-stopped
	worked("the second replica processes all keys", "third", 2)
}
