package hub

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/test/bubble"
)

const deadline = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// follower is a hub with a simulated watch cache.
type follower struct {
	*Hub
	tb     testing.TB
	source *watch.FakeWatcher
	tapped watch.Interface
	read   chan struct{}
	// expired is true if the latest watch has expired.
	expired bool
}

func newFollower(tb testing.TB) *follower {
	tb.Helper()
	f := &follower{tb: tb}
	f.Hub = NewHub(Config{
		Root:         "/r/",
		Versioner:    storage.APIObjectVersioner{},
		KeyFunc:      func(obj runtime.Object) string { return "/r/" + obj.(metav1.Object).GetName() },
		GetAttrs:     storage.DefaultClusterScopedAttr,
		NewFunc:      func() runtime.Object { return &metav1.PartialObjectMetadata{} },
		Shown:        func(obj runtime.Object) runtime.Object { return obj },
		WantProgress: func() {},
		Undecodable:  func() bool { return false },
	})
	tb.Cleanup(func() {
		f.stop()
		f.Close()
	})
	return f
}

// Version returns the resource version up to which the hub has received all events.
func (f *follower) Version() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// filled returns a hub with objects that follows the watch cache from version 10.
func filled(tb testing.TB, names ...string) *follower {
	tb.Helper()
	f := newFollower(tb)
	f.fill(names...)
	f.follow(10)
	return f
}

func versioned(name string, version int) *metav1.PartialObjectMetadata {
	obj := named(name)
	obj.ResourceVersion = fmt.Sprint(version)
	return obj
}

// fill lists objects like the watch cache.
func (f *follower) fill(names ...string) {
	list := &metav1.PartialObjectMetadataList{}
	for _, name := range names {
		list.Items = append(list.Items, *named(name))
	}
	f.Listed(true, list)
	for i := range list.Items {
		require.Equal(f.tb, "/r/"+list.Items[i].Name, f.Key(&list.Items[i]))
	}
}

// follow starts a watch from a version, after it has stopped the previous one.
func (f *follower) follow(version int) {
	f.stop()
	f.source = watch.NewFake()
	f.tapped = f.tap(f.source, fmt.Sprint(version))
	f.read, f.expired = make(chan struct{}), false
	select {
	case event := <-f.tapped.ResultChan():
		require.True(f.tb, apierrors.IsResourceExpired(apierrors.FromObject(event.Object)), "%v", event)
		f.expired = true
		close(f.read)
		return
	default:
	}
	go func() {
		defer close(f.read)
		for event := range f.tapped.ResultChan() {
			if event.Type != watch.Bookmark {
				timed := event.Object.(storage.WatchEventWithRecordTime) //nolint:forcetypeassert // all are
				f.Key(timed.Unwrap())
			}
		}
	}()
}

func (f *follower) tap(source watch.Interface, version string) watch.Interface {
	tapped, err := f.Tap(version, func() (watch.Interface, error) { return source, nil })
	require.NoError(f.tb, err)
	return tapped
}

func (f *follower) stop() {
	if f.tapped != nil {
		f.tapped.Stop()
		<-f.read
		f.tapped = nil
	}
}

func (f *follower) watch(version uint64) watch.Interface {
	return f.open(Request{Key: "/r/", Version: version, Predicate: storage.Everything, Older: tooOld})
}

func (f *follower) open(r Request) *Watcher {
	f.tb.Helper()
	w, err := f.Watch(f.tb.Context(), r)
	require.NoError(f.tb, err)
	return w.(*Watcher)
}

func tooOld(_ context.Context, version uint64) (watch.Interface, error) {
	return nil, fmt.Errorf("too old: %d", version)
}

// locked checks a state under the lock.
func (f *follower) locked(is func() bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return is()
}

// eventually waits for a state, which it checks under the lock.
func (f *follower) eventually(is func() bool) {
	f.tb.Helper()
	require.Eventually(f.tb, func() bool { return f.locked(is) }, deadline, time.Millisecond)
}

func next(tb testing.TB, w watch.Interface) string {
	tb.Helper()
	select {
	case event, ok := <-w.ResultChan():
		switch {
		case !ok:
			return "ended"
		case event.Type == watch.Error:
			return event.Object.(*metav1.Status).Message
		}
		return string(event.Type) + " " + event.Object.(metav1.Object).GetName()
	case <-time.After(deadline):
		require.FailNow(tb, "no event")
		return ""
	}
}

// TestCloseWaitsForTheWatchCache verifies that Close waits for the event that the watch cache is processing, because
// upstream must not be stopped before.
func TestCloseWaitsForTheWatchCache(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.fill("a")
		source := watch.NewFake()
		tapped := f.tap(source, "1")
		go source.Add(versioned("b", 2))
		require.Equal(t, watch.Added, (<-tapped.ResultChan()).Type)
		closed := make(chan struct{})
		go func() {
			f.Close()
			close(closed)
		}()
		_, more := <-tapped.ResultChan()
		require.False(t, more)
		bubble.Wait()
		select {
		case <-closed:
			require.FailNow(t, "closed while the watch cache processes an event")
		default:
		}
		tapped.Stop()
		<-closed
		_, more = <-f.tap(watch.NewFake(), "2").ResultChan()
		require.False(t, more)
	})
}

// TestFollow verifies that watches continue if the watch cache resumes, and end if it lists again and has missed events.
func TestFollow(t *testing.T) {
	f := newFollower(t)
	early := f.watch(10) // before the hub is filled
	f.fill("a", "b")
	f.follow(10)
	f.source.Add(versioned("c", 11))
	require.Equal(t, "ADDED c", next(t, early))

	f.follow(11) // the connection was closed
	f.source.Modify(versioned("a", 12))
	require.Equal(t, "MODIFIED a", next(t, early))
	late := f.watch(11)
	require.Equal(t, "MODIFIED a", next(t, late))

	f.stop() // a list without missed events
	f.fill("a", "b", "c")
	f.follow(12)
	f.source.Delete(versioned("b", 13))
	require.Equal(t, "DELETED b", next(t, early))
	require.Equal(t, "DELETED b", next(t, late))

	f.stop() // a list with missed events
	f.fill("a")
	f.follow(20)
	require.Equal(t, "ended", next(t, early))
	require.Equal(t, "ended", next(t, late))
	require.Equal(t, "too old: 13", next(t, f.watch(13)))
	again := f.watch(20)
	f.source.Add(versioned("d", 21))
	require.Equal(t, "ADDED d", next(t, again))
	objects, version := f.latest()
	require.EqualValues(t, 21, version)
	require.Equal(t, 2, objects.len)
}

// TestNoRequestsUntilTheRefill verifies that a hub which has lost track serves no requests until the watch cache is filled again.
func TestNoRequestsUntilTheRefill(t *testing.T) {
	f := filled(t, "a")
	w := f.watch(10)
	f.source.Add(versioned("b", 11))
	require.Equal(t, "ADDED b", next(t, w))
	require.False(t, f.expired)
	f.follow(15) // without a list
	require.True(t, f.expired)
	require.Equal(t, "ended", next(t, w))
	objects, _ := f.latest()
	require.Nil(t, objects)
	require.Nil(t, f.at(11))
	f.stop()
	f.fill("a", "b")
	f.Key(named("c")) // more objects than in the list
	f.follow(16)
	require.True(t, f.expired)
	f.stop()
	f.fill("a", "b")
	f.follow(16)
	require.False(t, f.expired)
	require.NotNil(t, f.at(16))
	require.NoError(t, f.WaitFresh(t.Context(), 0))
}

// TestListsWaitForTheHub verifies that a list without a version waits for all writes in etcd.
func TestListsWaitForTheHub(t *testing.T) {
	f := newFollower(t)
	requested := make(chan struct{}, 1)
	f.cfg.CurrentVersion = func(context.Context) (uint64, error) { return 11, nil }
	f.cfg.WantProgress = func() {
		select {
		case requested <- struct{}{}:
		default:
		}
	}
	f.fill("a")
	f.follow(10)
	listed := make(chan string, 1)
	go func() {
		objects, at, err := f.fresh(t.Context(), "")
		if err != nil {
			listed <- err.Error()
			return
		}
		listed <- fmt.Sprint(keysOf(objects), at)
	}()
	select {
	case <-requested: // it is waiting
	case got := <-listed:
		require.FailNow(t, "the list did not wait for the hub", got)
	}
	f.source.Add(versioned("b", 11))
	require.Equal(t, "/r/a,/r/b,11", <-listed)
}

// TestRequestsWaitForTheWatch verifies that requests between the list and the watch of the watch cache wait until a timeout.
func TestRequestsWaitForTheWatch(t *testing.T) {
	f := newFollower(t)
	f.fill("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.WaitFresh(ctx, 0), context.Canceled)
	follows := make(chan error)
	go func() { follows <- f.WaitFresh(t.Context(), 0) }()
	f.eventually(func() bool { return f.changed != nil })
	f.follow(10)
	require.NoError(t, <-follows)

	f = newFollower(t)
	f.fill("a")
	go func() { follows <- f.WaitFresh(t.Context(), 0) }()
	f.Close()
	require.Error(t, <-follows)
}

func TestClose(t *testing.T) {
	f := filled(t, "a")
	watches := []watch.Interface{f.watch(10), f.watch(99)}
	f.stop()
	f.Close()
	for _, w := range watches {
		require.Equal(t, "ended", next(t, w))
	}
	_, err := f.Watch(t.Context(), Request{Key: "/r/"})
	require.Error(t, err)
}

// TestBursts verifies that bursts do not end watches with a reader, and that no events are lost.
func TestBursts(t *testing.T) {
	const watchers, bursts, burst = 256, 100, 50
	f := filled(t, "a")
	var got atomic.Int64
	var readers sync.WaitGroup
	watches := make([]watch.Interface, watchers)
	for i := range watches {
		w := f.watchPart(hashrange.UID, i, watchers)
		watches[i] = w
		readers.Go(func() {
			for range w.ResultChan() {
				got.Add(1)
			}
		})
	}
	for i := range bursts * burst {
		f.source.Modify(versioned(fmt.Sprint(i%512), 11+i))
	}
	require.Eventually(t, func() bool { return got.Load() == bursts*burst }, deadline, time.Millisecond)
	require.True(t, f.locked(func() bool { return len(f.watchers) == watchers }))
	for _, w := range watches {
		w.Stop()
	}
	readers.Wait()
}

func (f *follower) watchPart(key hashrange.Key, i, n int) *Watcher {
	f.tb.Helper()
	predicate := storage.Everything
	predicate.ShardSelector = part(key, i, n)
	return f.open(Request{Key: "/r/", Version: 10, Predicate: predicate})
}

// part selects part i of n of the ring by a key.
func part(key hashrange.Key, i, n int) sharding.Selector {
	bound := func(i int) string {
		if i == n {
			return hashrange.End
		}
		return fmt.Sprintf("0x%016x", uint64(i)*(^uint64(0)/uint64(n)))
	}
	return sharding.NewSelector(sharding.ShardRangeRequirement{Key: key.Path(), Start: bound(i), End: bound(i + 1)})
}
