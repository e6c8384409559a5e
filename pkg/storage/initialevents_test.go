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
		for first := watching(ctx, t, s, "/pods", streaming(newest)); !isEnd(t, next(t, first)); {
			continue
		}
		for name, rv := range map[string]string{"consistent": "", "any": "0", "not older": newest} {
			t.Run(name, func(t *testing.T) {
				w := watching(ctx, t, s, "/pods", streaming(rv))
				expect(t, w, "ADDED bb|ns/one", "ADDED bb|ns/two", "ADDED bb|other/one")
				end := next(t, w)
				require.True(t, isEnd(t, end), "%v", end)
				require.GreaterOrEqual(t, versionOf(t, end.Object), leading(t, newest))

				for _, cluster := range []string{"aa", "bb"} {
					touch(in(t.Context(), cluster), t, s, "/pods/ns/one", len(name))
				}
				event := next(t, w)
				require.Equal(t, "MODIFIED bb|ns/one", describe(event))
				require.Greater(t, versionOf(t, event.Object), versionOf(t, end.Object))
			})
		}

		t.Run("selected", func(t *testing.T) {
			opts := streaming("")
			opts.Predicate.Label = labels.SelectorFromSet(labels.Set{"name": "two"})
			w := watching(ctx, t, s, "/pods/ns", opts)
			expect(t, w, "ADDED bb|ns/two")
			require.True(t, isEnd(t, next(t, w)))
			touch(ctx, t, s, "/pods/ns/two", 1) // relabels
			expect(t, w, "DELETED bb|ns/two")
		})

		t.Run("legacy", func(t *testing.T) {
			opts := listOpts()
			opts.Predicate.AllowWatchBookmarks = true
			w := watching(ctx, t, s, "/pods/other", opts)
			expect(t, w, "ADDED bb|other/one")
			touch(ctx, t, s, "/pods/other/one", 1)
			expect(t, w, "MODIFIED bb|other/one")
		})

		t.Run("none", func(t *testing.T) {
			opts := streaming("")
			opts.SendInitialEvents = new(false)
			w := watching(ctx, t, s, "/pods/other", opts)
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

func TestInitialEventsOfFutureVersions(t *testing.T) {
	t.Parallel()
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	w := watching(in(t.Context(), "root"), t, s, "/pods", streaming("100000"))
	event := next(t, w)
	require.Equal(t, watch.Error, event.Type)
	status := event.Object.(*metav1.Status)
	require.EqualValues(t, http.StatusGatewayTimeout, status.Code)
	require.True(t, storage.IsTooLargeResourceVersion(&apierrors.StatusError{ErrStatus: *status}))
	_, ok := <-w.ResultChan()
	require.False(t, ok)
}

// TestAbandonedInitialEvents verifies that nothing remains of a reader that stops or disappears.
func TestAbandonedInitialEvents(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	for i := range 10 {
		create(in(t.Context(), "root"), t, s, newPod("ns", fmt.Sprint(i)))
	}
	for range 5 {
		ctx, cancel := context.WithCancel(in(t.Context(), "root"))
		for _, end := range []func(watch.Interface){watch.Interface.Stop, func(watch.Interface) { cancel() }} {
			w := watching(ctx, t, s, "/pods", streaming(""))
			next(t, w)
			end(w)
			for range w.ResultChan() {
			}
		}
	}
	// A watch that is not stopped ends with the storage.
	require.NoError(t, errorOf(s.Watch(in(t.Context(), "root"), "/pods", streaming(""))))
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
		history[writer] = append(history[writer], versionOf(t, create(ctx, t, s, newPod("ns", "one"))))
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
			opts := streaming([]string{"", "0"}[reader%2])
			streams = append(streams, watching(in(t.Context(), fmt.Sprintf("cluster-%d", writer)), t, s, "/pods", opts))
		}
	}
	writing.Wait()
	for i, w := range streams {
		want := history[i%writers]
		require.Len(t, want, writes+1)
		event := next(t, w)
		require.Equal(t, watch.Added, event.Type)
		at := versionOf(t, event.Object)
		for want[0] != at {
			want = want[1:]
		}
		require.True(t, isEnd(t, next(t, w)))
		for _, rv := range want[1:] {
			event := next(t, w)
			require.Equal(t, watch.Modified, event.Type)
			require.Equal(t, rv, versionOf(t, event.Object))
		}
	}
}
