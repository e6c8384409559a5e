package storage

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// streaming returns options of a streamed list.
func streaming(rv string) storage.ListOptions {
	opts := listOpts()
	opts.ResourceVersion, opts.SendInitialEvents = rv, new(true)
	opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	opts.Predicate.AllowWatchBookmarks = true
	return opts
}

func isEnd(t *testing.T, event watch.Event) bool {
	t.Helper()
	if event.Type != watch.Bookmark {
		return false
	}
	end, err := storage.HasInitialEventsEndBookmarkAnnotation(event.Object)
	require.NoError(t, err)
	return end
}

func version(t *testing.T, obj any) uint64 {
	t.Helper()
	rv, err := strconv.ParseUint(obj.(*example.Pod).ResourceVersion, 10, 64)
	require.NoError(t, err)
	return rv
}

func TestInitialEvents(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		for _, cluster := range []string{"aa", "bb", "cc"} {
			for _, name := range []string{"ns/one", "ns/two", "other/one"} {
				var pod example.Pod
				pod.Namespace, pod.Name = name[:len(name)-4], name[len(name)-3:]
				pod.Labels = map[string]string{"name": pod.Name}
				create(in(t.Context(), cluster), t, s, &pod)
			}
		}
		ctx := in(t.Context(), "bb")
		newest := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
		// Resource version 0 allows any state: wait for the latest.
		first, err := s.Watch(ctx, "/pods", streaming(newest))
		require.NoError(t, err)
		for !isEnd(t, next(t, first)) {
			continue
		}
		first.Stop()
		for name, rv := range map[string]string{"consistent": "", "any": "0", "not older": newest} {
			t.Run(name, func(t *testing.T) {
				w, err := s.Watch(ctx, "/pods", streaming(rv))
				require.NoError(t, err)
				defer w.Stop()
				for _, want := range []string{"bb|ns/one", "bb|ns/two", "bb|other/one"} {
					require.Equal(t, "ADDED "+want, describe(next(t, w)))
				}
				end := next(t, w)
				require.True(t, isEnd(t, end), "%v", end)
				require.GreaterOrEqual(t, version(t, end.Object), version(t, &example.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: newest}}))

				for _, cluster := range []string{"aa", "bb"} {
					touch(in(t.Context(), cluster), t, s, "/pods/ns/one", len(name))
				}
				event := next(t, w)
				require.Equal(t, "MODIFIED bb|ns/one", describe(event))
				require.Greater(t, version(t, event.Object), version(t, end.Object))
				w.Stop()
			})
		}

		t.Run("selected", func(t *testing.T) {
			opts := streaming("")
			opts.Predicate.Label = labels.SelectorFromSet(labels.Set{"name": "two"})
			w, err := s.Watch(ctx, "/pods/ns", opts)
			require.NoError(t, err)
			defer w.Stop()
			require.Equal(t, "ADDED bb|ns/two", describe(next(t, w)))
			require.True(t, isEnd(t, next(t, w)))
			touch(ctx, t, s, "/pods/ns/two", 1) // relabels
			require.Equal(t, "DELETED bb|ns/two", describe(next(t, w)))
		})

		t.Run("legacy", func(t *testing.T) {
			opts := listOpts()
			opts.Predicate.AllowWatchBookmarks = true
			w, err := s.Watch(ctx, "/pods/other", opts)
			require.NoError(t, err)
			defer w.Stop()
			require.Equal(t, "ADDED bb|other/one", describe(next(t, w)))
			touch(ctx, t, s, "/pods/other/one", 1)
			require.Equal(t, "MODIFIED bb|other/one", describe(next(t, w)))
		})

		t.Run("none", func(t *testing.T) {
			opts := streaming("")
			opts.SendInitialEvents = new(false)
			w, err := s.Watch(ctx, "/pods/other", opts)
			require.NoError(t, err)
			defer w.Stop()
			touch(ctx, t, s, "/pods/other/one", 2)
			for {
				if event := next(t, w); event.Type != watch.Bookmark {
					require.Equal(t, "MODIFIED bb|other/one", describe(event))
					return
				}
			}
		})
	})
}

func TestInitialEventsOfTheFuture(t *testing.T) {
	t.Parallel()
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	w, err := s.Watch(in(t.Context(), "root"), "/pods", streaming("100000"))
	require.NoError(t, err)
	defer w.Stop()
	event := next(t, w)
	require.Equal(t, watch.Error, event.Type)
	status := event.Object.(*metav1.Status)
	require.EqualValues(t, http.StatusGatewayTimeout, status.Code)
	require.True(t, storage.IsTooLargeResourceVersion(&apierrors.StatusError{ErrStatus: *status}))
	_, ok := <-w.ResultChan()
	require.False(t, ok)
}

func TestWatchWithBadResourceVersion(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		for _, rv := range []string{"x", "-1"} {
			_, err := s.Watch(in(t.Context(), "root"), "/pods", streaming(rv))
			require.Truef(t, apierrors.IsBadRequest(err), "%v", err)
		}
	})
}

// TestInitialEventsNobodyReads verifies that nothing remains of a reader that stops or disappears.
func TestInitialEventsNobodyReads(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	for i := range 10 {
		create(in(t.Context(), "root"), t, s, newPod("ns", fmt.Sprint(i)))
	}
	for range 5 {
		ctx, cancel := context.WithCancel(in(t.Context(), "root"))
		for _, end := range []func(watch.Interface){watch.Interface.Stop, func(watch.Interface) { cancel() }} {
			w, err := s.Watch(ctx, "/pods", streaming(""))
			require.NoError(t, err)
			next(t, w)
			end(w)
			for range w.ResultChan() {
			}
			w.Stop()
		}
	}
	// A watch that is not stopped ends with the storage.
	_, err := s.Watch(in(t.Context(), "root"), "/pods", streaming(""))
	require.NoError(t, err)
}

// TestInitialEventsUnderWrites verifies that streams which start during writes contain each object once in its latest
// state, followed by each change in order.
func TestInitialEventsUnderWrites(t *testing.T) {
	const writers, writes, readers = 3, 60, 8
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	var writing sync.WaitGroup
	history := make([][]uint64, writers)
	for writer := range writers {
		ctx := in(t.Context(), fmt.Sprintf("cluster-%d", writer))
		history[writer] = append(history[writer], version(t, create(ctx, t, s, newPod("ns", "one"))))
		list(ctx, t, s, "/pods", page(1, "")) // version 0, too, has the object now
		writing.Go(func() {
			for i := range writes {
				out := &example.Pod{}
				if s.GuaranteedUpdate(ctx, "/pods/ns/one", out, false, nil, relabel(fmt.Sprint(i)), nil) != nil {
					return
				}
				rv, _ := strconv.ParseUint(out.ResourceVersion, 10, 64)
				history[writer] = append(history[writer], rv)
			}
		})
	}
	streams := make([]watch.Interface, 0, readers*writers)
	for reader := range readers {
		for writer := range writers {
			w, err := s.Watch(in(t.Context(), fmt.Sprintf("cluster-%d", writer)), "/pods", streaming([]string{"", "0"}[reader%2]))
			require.NoError(t, err)
			streams = append(streams, w)
		}
	}
	writing.Wait()
	for i, w := range streams {
		want := history[i%writers]
		require.Len(t, want, writes+1)
		event := next(t, w)
		require.Equal(t, watch.Added, event.Type)
		at := version(t, event.Object)
		for want[0] != at {
			want = want[1:]
		}
		require.True(t, isEnd(t, next(t, w)))
		for _, rv := range want[1:] {
			event := next(t, w)
			require.Equal(t, watch.Modified, event.Type)
			require.Equal(t, rv, version(t, event.Object))
		}
		w.Stop()
	}
}
