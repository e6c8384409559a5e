package storage

import (
	"context"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/utils/clock"
)

// calls are the calls of a watch cache, in order.
type calls struct {
	*belowCache

	mu      sync.Mutex
	made    []string
	event   runtime.Object // the latest
	expires bool           // the next event is an error
}

func (c *calls) note(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, call)
}

// take returns the calls since the last take.
func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = nil
	return made
}

func (c *calls) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	c.note("list")
	return c.belowCache.GetList(ctx, key, opts, list)
}

func (c *calls) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	c.note("watch from " + opts.ResourceVersion)
	w, err := c.belowCache.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return drained{watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		timed, ok := event.Object.(storage.WatchEventWithRecordTime)
		if !ok || event.Type == watch.Bookmark {
			return event, true
		}
		c.event = timed.Unwrap()
		if c.expires {
			c.expires = false
			status := apierrors.NewResourceExpired("list again").Status()
			return watch.Event{Type: watch.Error, Object: &status}, true
		}
		return event, true
	})}, nil
}

// drained is a filtered watch that can be stopped without reading all events.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()
	for range d.ResultChan() {
	}
}

func (c *calls) key(obj runtime.Object) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := "key of " + obj.(*example.Pod).Name
	if obj == c.event {
		call = "key of the event"
		if len(c.made) > 0 && c.made[len(c.made)-1] == call {
			return podKey(obj) // called again
		}
	}
	c.made = append(c.made, call)
	return podKey(obj)
}

// watchCache is upstream's watch cache of pods with the recorded calls.
type watchCache struct {
	*cacher.Cacher

	t     *testing.T
	below *calls
	last  string // the version of the latest pod
}

// newWatchCache returns a watch cache that is filled with pods. The clock may be nil.
func newWatchCache(t *testing.T, b *Backend, clk clock.WithTicker, pods ...string) *watchCache {
	t.Helper()
	cfg := b.storageConfig(podsGR, podCodec(t))
	raw := openRaw(t, b, cfg.Codec)
	w := &watchCache{t: t, below: &calls{belowCache: &belowCache{Interface: raw, source: t.Name(), progress: newProgress(b.cfg.Client.Client, t.Name())}}}
	t.Cleanup(w.below.progress.stop)
	for _, name := range pods {
		w.write(name)
	}
	var err error
	w.Cacher, err = cacher.NewCacherFromConfig(cacher.Config{
		Storage: w.below, Versioner: raw.Versioner(), GroupResource: podsGR, EventsHistoryWindow: cfg.EventsHistoryWindow,
		ResourcePrefix: "/pods/", KeyFunc: w.below.key, GetAttrsFunc: podAttrs, NewFunc: newObject, NewListFunc: newList, Codec: cfg.Codec, Clock: clk,
	})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	require.NoError(t, w.Wait(t.Context()))
	return w
}

func (w *watchCache) write(name string) {
	w.t.Helper()
	w.last = create(w.t.Context(), w.t, w.below, newPod("ns", name)).ResourceVersion
}

// await waits until the cache has received the latest pod.
func (w *watchCache) await(name string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return w.Ready() && w.Get(w.t.Context(), "/pods/ns/"+name, storage.GetOptions{ResourceVersion: w.last}, &example.Pod{}) == nil
	}, deadline, time.Millisecond)
}

// The hub depends on the order in which upstream calls the key function (Hub.Key) and lists again after an error
// (Hub.Tap). If this fails with a new version of k8s.io/apiserver, the hub may miss objects of the watch cache:
// check Hub.Listed, Hub.Key and Hub.Tap first.
func TestUpstreamOrderOfKeyFunctionCalls(t *testing.T) {
	t.Parallel()
	b := backendOf(t, BackendConfig{Client: startEtcd(t).Client()}) // it counts revisions
	w := newWatchCache(t, b, nil, "a", "b")
	filled := w.last

	w.write("c")
	w.await("c")
	require.Equal(t, []string{"list", "key of a", "key of b", "watch from " + filled, "key of the event"}, w.below.take(),
		"the key function must be called once per listed object, in order, before the watch, and then with the object of the event")
	w.write("d")
	w.await("d")
	require.Equal(t, []string{"key of the event"}, w.below.take())

	w.below.mu.Lock()
	w.below.expires = true
	w.below.mu.Unlock()
	w.write("e")
	w.await("e")
	filled = w.last
	w.write("f")
	w.await("f")
	require.Equal(t, []string{"list", "key of a", "key of b", "key of c", "key of d", "key of e", "watch from " + filled, "key of the event"}, w.below.take(),
		"the cache must list again after an expired watch")
}

// timers is a clock that records the durations of timers.
type timers struct {
	clock.RealClock

	mu   sync.Mutex
	made map[string]time.Duration
}

func (c *timers) NewTimer(d time.Duration) clock.Timer {
	caller, _, _, _ := goruntime.Caller(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made[goruntime.FuncForPC(caller).Name()] = d
	return c.RealClock.NewTimer(d)
}

// slowTickClock recognizes the bookmark timer by its duration. If this fails with a new version of k8s.io/apiserver,
// idle caches wake the process every second, or another timer takes ten minutes: check slowTickClock.NewTimer.
func TestUpstreamBookmarkTimer(t *testing.T) {
	t.Parallel()
	const bookmarks = "k8s.io/apiserver/pkg/storage/cacher.(*Cacher).dispatchEvents"
	b := backendOf(t, BackendConfig{})
	for range 10 { // the time is random
		clk := &timers{made: map[string]time.Duration{}}
		newWatchCache(t, b, clk)
		require.Eventually(t, func() bool {
			clk.mu.Lock()
			defer clk.mu.Unlock()
			return len(clk.made) >= 3 // with those of compactions and progress
		}, deadline, time.Millisecond)
		clk.mu.Lock()
		require.Contains(t, clk.made, bookmarks)
		for caller, d := range clk.made {
			require.Equal(t, caller == bookmarks, isDispatchTick(d), "%s created a timer of %s", caller, d)
		}
		clk.mu.Unlock()
	}
}

// Backend.open disables the snapshots of the watch cache. If this fails with a new version of k8s.io/apiserver, events
// copy parts of the cache's tree, or lists at an exact version return another version: check MarkConsistent.
func TestUpstreamKeepsNoInconsistentSnapshots(t *testing.T) {
	t.Parallel()
	w := newWatchCache(t, backendOf(t, BackendConfig{}), nil, "a")
	delegator := cacher.NewCacheDelegator(w.Cacher, w.below)
	t.Cleanup(delegator.Stop)
	// below lists at the version before the latest, and reports whether the cache called etcd.
	below := func(before, latest string) bool {
		w.write(before)
		at := w.last
		w.write(latest)
		w.await(latest)
		w.below.take()
		opts := listOpts()
		opts.ResourceVersion, opts.ResourceVersionMatch = at, metav1.ResourceVersionMatchExact
		require.NotContains(t, names(list(t.Context(), t, delegator, "/pods/", opts).Items...), "|ns/"+latest)
		return slices.Contains(w.below.take(), "list")
	}
	require.False(t, below("b", "c"), "the cache must serve exact versions by default")
	w.MarkConsistent(false)
	require.True(t, below("d", "e"))
}
