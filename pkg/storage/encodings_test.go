package storage

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestEncodedOnce verifies that an event is encoded once per encoding for all watchers, including those that start
// later.
func TestEncodedOnce(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	one, all := in(t.Context(), "aa"), request.WithWildcard(t.Context())
	at := list(all, t, s, "/pods", listOpts()).ResourceVersion
	labelled := listOpts()
	labelled.Predicate.Label = labels.Set{"value": "1"}.AsSelector()
	kinds := []func() watch.Interface{
		func() watch.Interface { return watchFrom(one, t, s, "/pods", at, listOpts()) },
		func() watch.Interface { return watchFrom(one, t, s, "/pods/ns", at, listOpts()) },
		func() watch.Interface {
			return watchFrom(one, t, s, "/pods/ns/one", at, storage.ListOptions{Predicate: everything()})
		},
		func() watch.Interface { return watchFrom(all, t, s, "/pods", at, listOpts()) },
		func() watch.Interface { return watchFrom(all, t, s, "/pods/ns", at, listOpts()) },
		func() watch.Interface { return watchFrom(one, t, s, "/pods", at, sharded(t, listOpts(), ring)) },
		func() watch.Interface { return watchFrom(all, t, s, "/pods", at, sharded(t, listOpts(), ring)) },
		func() watch.Interface {
			return watchFrom(all, t, s, "/pods", at, sharded(t, listOpts(), slice("namespace", 0, 1)))
		},
		func() watch.Interface { return watchFrom(one, t, s, "/pods", at, labelled) },
	}
	two := func() (watches []watch.Interface) { // of each kind
		for _, open := range kinds {
			watches = append(watches, open(), open())
		}
		return watches
	}
	live := two()
	create(one, t, s, newUIDPod("ns", "one"))
	touch(one, t, s, "/pods/ns/one", 1)
	touch(one, t, s, "/pods/ns/one", 2)
	remove(one, t, s, "/pods/ns/one")

	received := map[string][]runtime.CacheableObject{}
	take := func(watches []watch.Interface) {
		for i, w := range watches {
			events := 4
			if i >= len(watches)-2 {
				events = 2 // the label comes and goes
			}
			for range events {
				event := <-w.ResultChan()
				shared, ok := event.Object.(runtime.CacheableObject)
				require.True(t, ok, "%T", event.Object)
				pod := shared.GetObject().(*example.Pod)
				state := fmt.Sprintf("%s %s", pod.ResourceVersion, pod.Labels["value"])
				received[state] = append(received[state], shared)
			}
		}
	}
	take(live)
	take(two()) // from the history
	require.Len(t, received, 5, "four events, and a deletion for watches with a label selector")
	for state, objects := range received {
		encodings := atomic.Int64{}
		var writers sync.WaitGroup
		for _, object := range objects {
			for _, id := range []runtime.Identifier{"json", "protobuf"} {
				writers.Go(func() {
					_ = object.CacheEncode(id, func(runtime.Object, io.Writer) error {
						encodings.Add(1)
						return nil
					}, io.Discard)
				})
			}
		}
		writers.Wait()
		require.EqualValues(t, 2, encodings.Load(), "%s, %d watches", state, len(objects))
	}
}
