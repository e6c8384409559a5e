package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/bubble"
)

// TestDroppedKeysAreNotReconciled: queued and delayed keys can be dropped until they are added again.
func TestDroppedKeysAreNotReconciled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var (
			queue   reconcile.Queue[string]
			mu      sync.Mutex
			worked  []string
			release = make(chan struct{})
		)
		controller := reconcile.New(reconcile.Config[string]{
			Name: "drops", Workers: 1,
			Sources: []reconcile.Source[string]{func(_ context.Context, q reconcile.Queue[string]) (func(), error) {
				queue = q
				return func() {}, nil
			}},
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				mu.Lock()
				worked = append(worked, key)
				mu.Unlock()
				switch key {
				case "blocks":
					<-release
				case "again":
					return reconcile.Result{RequeueAfter: time.Hour}, nil
				case "fails":
					return reconcile.Result{}, fmt.Errorf("%s", key)
				}
				return reconcile.Result{}, nil
			},
		})
		background.Run(t.Context(), t, controller.Run)
		since := func() []string {
			bubble.Wait()
			mu.Lock()
			defer mu.Unlock()
			defer func() { worked = nil }()
			return slices.Compact(worked)
		}
		bubble.Wait()

		queue.Add("blocks")
		bubble.Wait()
		queue.Add("goes")
		queue.Add("stays")
		queue.Drop("goes")
		queue.Drop("blocks") // being processed
		release <- struct{}{}
		require.Equal(t, []string{"blocks", "stays"}, since())
		queue.Add("goes")
		require.Equal(t, []string{"goes"}, since())

		queue.Add("again")
		queue.AddAfter("later", time.Minute)
		queue.AddAfter("later", time.Hour) // has no effect
		queue.Add("fails")
		require.Equal(t, []string{"again", "fails"}, since())
		for _, key := range []string{"again", "later", "fails"} {
			queue.Drop(key)
		}
		<-time.After(2 * time.Hour)
		require.Empty(t, since())
		for _, key := range []string{"again", "later"} {
			queue.Add(key)
		}
		require.Equal(t, []string{"again", "later"}, since())
		queue.Drop("later")
		queue.AddAfter("later", time.Second)
		<-time.After(time.Minute)
		require.Equal(t, []string{"later"}, since())
	})
}

// TestKeysOutsideTheRangesAreDropped: keys of objects outside of the ranges are not processed until the ranges include them again.
func TestKeysOutsideTheRangesAreDropped(t *testing.T) {
	const clusters = 40
	server := clienttest.New(t, kinds.Scheme)
	for n := range clusters {
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "a", Annotations: map[string]string{logicalcluster.AnnotationKey: fmt.Sprint("cluster", n)},
		}})
	}
	factory := factoryOf(t, server)
	all, err := client.PartOf(client.ByCluster, 0, 1)
	require.NoError(t, err)
	half, err := client.PartOf(client.ByCluster, 0, 2)
	require.NoError(t, err)
	ranges := client.NewChangingRanges(all)
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: ranges})
	release, began, worked := make(chan struct{}), make(chan client.Key, 1), make(chan client.Key, 10*clusters)
	controller := reconcile.New(reconcile.Config[client.Key]{
		Name: "leaves", Workers: 1, Sources: []reconcile.Source[client.Key]{reconcile.Keys(informer)},
		Reconcile: func(_ context.Context, key client.Key) (reconcile.Result, error) {
			select {
			case began <- key: // the first one
				<-release
			default:
				worked <- key
			}
			return reconcile.Result{}, nil
		},
	})
	background.Run(t.Context(), t, informer.Run)
	require.NoError(t, informer.WaitForSync(t.Context()))
	background.Run(t.Context(), t, controller.Run)
	require.Eventually(t, func() bool { return len(began) == 1 }, time.Minute, time.Millisecond)

	ranges.Set(half)
	require.Eventually(t, func() bool { return informer.LoadedRanges().Equal(half) }, time.Minute, time.Millisecond)
	held := informer.Lister().Len()
	require.Less(t, held, clusters-1)
	close(release)
	require.Eventually(t, func() bool { return len(worked) >= held-1 }, time.Minute, time.Millisecond)
	ranges.Set(all) // processed after the dropped keys
	require.Eventually(t, func() bool { return len(worked) >= clusters-1 }, time.Minute, time.Millisecond)
	seen := map[client.Key]int{}
	for range len(worked) {
		seen[<-worked]++
	}
	for key, times := range seen {
		require.Equal(t, 1, times, "%s", key)
	}
}
