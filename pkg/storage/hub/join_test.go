package hub

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/test/bubble"
)

// These tests cover how a watcher joins the hub during changes of the hub and the watch cache. It must receive each event
// once, in order, or its stream must end with an error.

// older is the watch cache, which may be ahead of the hub or behind it.
type older struct {
	*follower

	requested chan uint64
	streams   chan watch.Interface // or nil if the version is too old
}

func newOlder(t *testing.T, names ...string) *older {
	t.Helper()
	return &older{follower: filled(t, names...), requested: make(chan uint64), streams: make(chan watch.Interface)}
}

// joining returns a hub, a watcher from version 4, and the stream of the watch cache that it receives first.
func joining(t *testing.T, names ...string) (*older, watch.Interface, *watch.RaceFreeFakeWatcher) {
	t.Helper()
	o, cache := newOlder(t, names...), watch.NewRaceFreeFake()
	w := o.resume(4)
	o.serve(4, cache)
	return o, w, cache
}

// inBubbles runs each case in a bubble.
func inBubbles[C any](t *testing.T, cases map[string]C, test func(t *testing.T, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { test(t, c) })
		})
	}
}

// resume watches from a version, from before the hub's history in the watch cache.
func (o *older) resume(version uint64) watch.Interface {
	o.tb.Helper()
	older := func(ctx context.Context, version uint64) (watch.Interface, error) {
		for {
			select {
			case o.requested <- version:
			case stream := <-o.streams:
				if stream == nil {
					return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old: %d", version))
				}
				return stream, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return o.open(Request{Key: "/r/", Version: version, Predicate: storage.Everything, Older: older})
}

// serve returns the stream for a version.
func (o *older) serve(version uint64, stream watch.Interface) {
	o.tb.Helper()
	require.Equal(o.tb, version, <-o.requested)
	o.streams <- stream
}

func bookmarkAt(version int) *metav1.PartialObjectMetadata { return versioned("", version) }

func nextIs(tb testing.TB, w watch.Interface, version int, want string) {
	tb.Helper()
	event := <-w.ResultChan()
	require.NotNil(tb, event.Object, "the stream ended, want %s", want)
	status, failed := event.Object.(*metav1.Status)
	require.False(tb, failed, "%v", status)
	object := event.Object.(metav1.Object)
	require.Equal(tb, fmt.Sprint(want, " ", version), fmt.Sprint(event.Type, " ", object.GetName(), " ", object.GetResourceVersion()))
}

// TestJoinWaitsForTheHub verifies that events which the hub receives later are not sent twice.
func TestJoinWaitsForTheHub(t *testing.T) {
	inBubbles(t, map[string]watch.Event{
		"after a bookmark":        {Type: watch.Bookmark, Object: bookmarkAt(15)},
		"before the next event":   {Type: watch.Added, Object: versioned("d", 16)},
		"at the end of the watch": {},
	}, func(t *testing.T, last watch.Event) {
		o, w, cache := joining(t, "a")
		cache.Add(versioned("b", 5))
		nextIs(t, w, 5, "ADDED b")
		cache.Add(versioned("c", 15))
		nextIs(t, w, 15, "ADDED c")
		if last.Object == nil {
			cache.Stop()
		} else {
			cache.Action(last.Type, last.Object)
		}
		bubble.Wait()

		o.source.Add(versioned("c", 15))
		o.source.Add(versioned("d", 16))
		nextIs(t, w, 16, "ADDED d")
	})
}

// TestJoinDoesNotSplitVersions verifies that a watcher which joins between events with the same version, e.g. of objects
// that expire together, receives each once.
func TestJoinDoesNotSplitVersions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o, w, cache := joining(t, "a", "b")
		cache.Modify(versioned("a", 9))
		nextIs(t, w, 9, "MODIFIED a")
		cache.Delete(versioned("a", 11))
		nextIs(t, w, 11, "DELETED a")
		o.source.Delete(versioned("a", 11))
		o.source.Delete(versioned("b", 11))
		o.source.Add(versioned("c", 12))
		cache.Delete(versioned("b", 11))
		nextIs(t, w, 11, "DELETED b")
		cache.Add(versioned("c", 12))
		nextIs(t, w, 12, "ADDED c")
		require.Empty(t, w.ResultChan())
	})
}

// TestNoJoinBeforeTheRefill verifies that a watcher does not join a hub that has lost track until it is filled again.
func TestNoJoinBeforeTheRefill(t *testing.T) {
	inBubbles(t, map[string]int{"no missed events": 10, "missed events": 20}, func(t *testing.T, at int) {
		o, w, cache := joining(t, "a")
		cache.Modify(versioned("a", 10))
		nextIs(t, w, 10, "MODIFIED a")
		o.follow(99) // loses track
		cache.Stop()
		bubble.Wait()

		o.stop()
		o.fill("a")
		o.follow(at)
		if at == 20 {
			again := watch.NewFake()
			o.serve(10, again)
			again.Add(versioned("b", 20))
			nextIs(t, w, 20, "ADDED b")
			again.Action(watch.Bookmark, bookmarkAt(20))
		}
		bubble.Wait()
		o.source.Add(versioned("c", 21))
		nextIs(t, w, 21, "ADDED c")
	})
}

// TestJoinReturnsRetryAfter verifies that clients must retry if the hub is not filled again, for any version.
func TestJoinReturnsRetryAfter(t *testing.T) {
	versions := map[string]uint64{"any": 0, "older": 4, "latest": 10, "future": 1000}
	inBubbles(t, versions, func(t *testing.T, version uint64) {
		o := newOlder(t, "a")
		o.follow(99) // loses track
		w := o.resume(version)
		event := <-w.ResultChan()
		require.Equal(t, watch.Error, event.Type)
		status := event.Object.(*metav1.Status)
		require.EqualValues(t, http.StatusTooManyRequests, status.Code)
		require.EqualValues(t, retryAfterSeconds, status.Details.RetryAfterSeconds)
		_, more := <-w.ResultChan()
		require.False(t, more)
	})
}

// TestJoinAfterARefill verifies that a watcher expires if the hub is filled again and the watch cache has no history.
func TestJoinAfterARefill(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o, w, cache := joining(t, "a")
		cache.Modify(versioned("a", 6))
		nextIs(t, w, 6, "MODIFIED a")
		o.stop()
		o.fill("a", "b")
		o.follow(30)
		cache.Stop() // as the watch cache does when it is filled again
		o.serve(6, nil)
		event := <-w.ResultChan()
		require.Equal(t, watch.Error, event.Type)
		require.EqualValues(t, http.StatusGone, event.Object.(*metav1.Status).Code)
	})
}

// TestJoinAfterInitialEvents fills the hub again between the initial events and the following events of a watcher.
func TestJoinAfterInitialEvents(t *testing.T) {
	refills := map[string]int{"no missed events": 10, "missed events": 20, "lost track": -20}
	inBubbles(t, refills, func(t *testing.T, at int) {
		o := newOlder(t, "a")
		refilled := make(chan struct{})
		w := o.open(Request{
			Key: "/r/", Predicate: storage.Everything, Older: tooOld,
			Start: func(_ context.Context, send func(watch.Event) bool) (uint64, error) {
				send(watch.Event{Type: watch.Added, Object: versioned("a", 10)})
				<-refilled
				return 10, nil
			},
		})
		nextIs(t, w, 10, "ADDED a")
		if at < 0 {
			o.follow(99)
			at = -at
		}
		o.stop()
		o.fill("a")
		o.follow(at)
		close(refilled)
		bubble.Wait()
		if at == 20 {
			require.Equal(t, "too old: 10", next(t, w))
			require.Equal(t, "ended", next(t, w))
			return
		}
		o.source.Add(versioned("b", 21))
		nextIs(t, w, 21, "ADDED b")
	})
}

// TestRefillWhileBehind verifies that a watcher which reads from the history continues after the hub is filled again if no
// events were missed, and ends otherwise.
func TestRefillWhileBehind(t *testing.T) {
	const events = 3 * buffered
	inBubbles(t, map[string]int{"no missed events": 0, "missed events": 1}, func(t *testing.T, missed int) {
		f := filled(t, "a")
		w := f.watch(10)
		for i := range events {
			f.source.Modify(versioned("a", 11+i))
		}
		bubble.Wait() // until its buffer is full
		f.stop()
		f.fill("a")
		f.follow(10 + events + missed)
		f.source.Modify(versioned("a", 11+events+missed))
		bubble.Wait()
		want, got := 11, 0
		for event := range w.ResultChan() {
			require.Equal(t, fmt.Sprint(want), event.Object.(metav1.Object).GetResourceVersion())
			want++
			if got++; got > events {
				break
			}
		}
		if missed == 0 {
			require.Equal(t, events+1, got)
			return
		}
		require.Less(t, got, events, "only buffered events must be sent")
	})
}

// TestSlowReaders verifies that a watch without a reader is ended after a time, and does not affect others.
func TestSlowReaders(t *testing.T) {
	metrics.Register()
	const events = 3 * buffered
	bubble.Test(t, func(t *testing.T) {
		f := filled(t, "a")
		ended := func() float64 {
			value, err := testutil.GetCounterMetricValue(metrics.TerminatedWatchersCounter.WithLabelValues(f.cfg.Resource.Group, f.cfg.Resource.Resource))
			require.NoError(t, err)
			return value
		}
		before := ended() // also of other tests
		slow, fast, late := f.watch(10), f.watch(10), f.watch(10)
		for i := range events {
			f.source.Modify(versioned("a", 11+i))
			nextIs(t, fast, 11+i, "MODIFIED a")
		}
		time.Sleep(slowBudget - 1) //nolint:forbidigo // in a bubble
		for i := range events {
			nextIs(t, late, 11+i, "MODIFIED a")
		}
		time.Sleep(2 * time.Nanosecond) //nolint:forbidigo // in a bubble
		read := 0
		for range slow.ResultChan() {
			read++
		}
		require.Equal(t, buffered, read)
		require.InDelta(t, before+1, ended(), 0)
		f.source.Modify(versioned("a", 11+events))
		for _, w := range []watch.Interface{fast, late} {
			nextIs(t, w, 11+events, "MODIFIED a")
		}
	})
}

// held delays reading the history of a watcher that has joined.
type held chan struct{}

func (h held) Signal() { <-h }
func (held) Wait()     {}

// TestBookmarksAreNotEarly verifies that watchers with pending events, or that have not joined, receive no bookmark.
func TestBookmarksAreNotEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := filled(t, "a")
		start, hold := make(chan uint64), make(held)
		started := func(context.Context, func(watch.Event) bool) (uint64, error) { return <-start, nil }
		joining := f.open(Request{Key: "/r/", Predicate: bookmarked, Start: started})
		behind, err := f.Watch(utilflowcontrol.WithInitializationSignal(t.Context(), hold), Request{Key: "/r/", Version: 10, Predicate: bookmarked})
		require.NoError(t, err)
		f.source.Modify(versioned("a", 11))
		f.source.Modify(versioned("a", 12))
		bubble.Wait()
		later := time.Now().Add(2 * bookmarkPeriod)
		f.sendBookmarks(later)
		require.Empty(t, joining.ResultChan())
		require.Empty(t, behind.ResultChan())

		start <- 12
		close(hold)
		nextIs(t, behind, 11, "MODIFIED a")
		nextIs(t, behind, 12, "MODIFIED a")
		bubble.Wait()
		f.sendBookmarks(later)
		nextIs(t, joining, 12, "BOOKMARK ")
		nextIs(t, behind, 12, "BOOKMARK ")
	})
}

// TestRestoredEtcd verifies that versions from before a restore of etcd are not served.
func TestRestoredEtcd(t *testing.T) {
	f := newFollower(t)
	f.fill("a", "b")
	f.follow(20)
	f.kept.add(20, f.at(20), time.Now(), 0)
	f.stop()
	f.fill("a")
	f.follow(10)
	require.Nil(t, f.at(20))
	f.source.Add(versioned("c", 20))
	require.NoError(t, f.WaitFresh(t.Context(), 20))
	require.Equal(t, "/r/a,/r/c,", keysOf(f.at(20)))
}

func keysOf(s *snapshot) (keys string) {
	s.from("", func(it item) bool {
		keys += it.key + ","
		return true
	})
	return keys
}
