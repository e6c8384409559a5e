package hub

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	// freshTimeout is how long a request waits for the hub to reach a resource
	// version, as in the watch cache.
	freshTimeout = 3 * time.Second
	// askAgain is how often a request that waits asks etcd for progress.
	askAgain = 100 * time.Millisecond
	// retryAfterSeconds is what a client whose request waited in vain is told.
	retryAfterSeconds = 1
)

// Config is what a hub knows of its resource.
type Config struct {
	// Resource names the resource in metrics.
	Resource schema.GroupResource
	// Root is the prefix of the resource's keys, with a slash at its end.
	Root      string
	Versioner storage.Versioner
	// KeyFunc gives the key of an object; it must not fail.
	KeyFunc func(runtime.Object) string
	// GetAttrs gives what the selectors of watchers are matched with.
	GetAttrs storage.AttrFunc
	// NewFunc returns an empty object, for bookmarks.
	NewFunc func() runtime.Object
	// Shown returns an object as it is shown: itself, or a copy. nil shows all as they are.
	Shown func(runtime.Object) runtime.Object
	// WantProgress has etcd asked for a progress notification soon.
	WantProgress func()
	// CurrentVersion asks etcd for its resource version.
	CurrentVersion func(context.Context) (uint64, error)
	// CompactRevision is up to where etcd was compacted.
	CompactRevision func() int64
	// Undecodable reports whether an object could not be decoded since the last call; nil if all can.
	Undecodable func() bool
}

// Hub follows what one watch cache reads from etcd.
type Hub struct {
	cfg Config

	// current is the object that the watch cache is about to ask the key of.
	current atomic.Pointer[item]

	mu sync.Mutex
	// synced is false until the watch cache is filled, and until it is filled
	// again where the hub has lost track of it.
	synced bool
	// version is the resource version up to which everything was seen.
	version uint64
	// lastEvent is the version of the last event, or of the list before it: the
	// objects are the same at all versions from here to version.
	lastEvent uint64
	objects   *tree
	kept      keptSnapshots
	history   history
	// written is how large the objects of all events were that came.
	written int64
	// filling are the objects with which the watch cache is being filled.
	filling *filling
	// changed is closed when version grows, if anybody waits for it.
	changed chan struct{}

	watchers map[*Watcher]struct{}
	// lastWatched is when the last watch ended, and expiring forgets what is too old.
	lastWatched time.Time
	expiring    *time.Timer
	// older is by how much events of the watch cache seem older than those before, see aged.
	older   time.Duration
	scopes  scopes
	claimed claimed
	found   []*Watcher // reused by each event
	// selections are those of the watchers.
	selections map[selectionKey]*selection
	nextTick   time.Time // when bookmarks are looked after, if anybody wants some
	sooner     chan struct{}

	closed  bool
	done    chan struct{}
	tapped  chan struct{} // closed when the latest tap has ended
	running sync.WaitGroup
}

// New returns a hub that knows nothing yet.
func New(cfg Config) *Hub {
	tapped := make(chan struct{})
	close(tapped)
	return &Hub{
		cfg:        cfg,
		objects:    newTree(nil),
		watchers:   map[*Watcher]struct{}{},
		scopes:     scopes{},
		claimed:    claimed{of: map[*claims.Set]*claimants{}, in: map[string][]claimant{}},
		selections: map[selectionKey]*selection{},
		sooner:     make(chan struct{}, 1),
		done:       make(chan struct{}),
		tapped:     tapped,
	}
}

// Close ends all watches and waits for what the hub has running. The watch
// cache must have been stopped.
func (h *Hub) Close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
	h.endAllLocked()
	h.unclaimAllLocked()
	if h.expiring != nil {
		h.expiring.Stop()
	}
	h.mu.Unlock()
	h.running.Wait()
}

// start runs f as something that Close waits for, unless the hub is closed.
func (h *Hub) startLocked(f func()) bool {
	if h.closed {
		return false
	}
	h.running.Go(f)
	return true
}

// filling collects the objects of a list, which is what the watch cache asks
// the keys of between its list and its watch.
type filling struct {
	items []item
	want  int
}

// Listed is called with each page of the list that fills the watch cache. The
// objects themselves are taken in Key: the watch cache keeps copies, which are
// what the hub shares memory with.
func (h *Hub) Listed(first bool, list runtime.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if first || h.filling == nil {
		h.filling = &filling{}
	}
	h.filling.want += meta.LenList(list)
}

// Key is the watch cache's key function.
func (h *Hub) Key(obj runtime.Object) string {
	if current := h.current.Load(); current != nil && current.obj == obj {
		return current.key
	}
	key := h.cfg.KeyFunc(obj)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.filling != nil {
		h.filling.items = append(h.filling.items, item{key, obj})
	}
	return key
}

// Tap returns the watch that the watch cache reads, from w, which starts at the
// version. The hub takes an event when the watch cache has received it. Where the
// hub would not know what the watch cache knows, the watch has expired: so the
// watch cache is filled again, and the hub with it.
func (h *Hub) Tap(w watch.Interface, version string) watch.Interface {
	h.mu.Lock()
	previous := h.tapped
	h.mu.Unlock()
	<-previous // the watch cache has stopped it

	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.resumeLocked(version) {
		w.Stop()
		return expired()
	}
	t := &tap{Interface: w, hub: h, result: make(chan watch.Event), stopped: make(chan struct{}), ended: make(chan struct{})}
	h.tapped = t.ended
	if !h.startLocked(t.run) {
		close(t.result)
		close(t.ended)
	}
	return t
}

// expired returns a watch that has its reader list again.
func expired() watch.Interface {
	status := apierrors.NewResourceExpired("the hub has lost track of the watch cache").Status()
	result := make(chan watch.Event, 1)
	result <- watch.Event{Type: watch.Error, Object: &status}
	return watch.NewProxyWatcher(result)
}

// resumeLocked starts to follow a watch from a version. It reports whether the
// hub has all that was there at the version.
func (h *Hub) resumeLocked(resourceVersion string) bool {
	version, err := h.cfg.Versioner.ParseResourceVersion(resourceVersion)
	f := h.filling
	h.filling = nil
	switch {
	case err == nil && f == nil && h.synced && version == h.version:
		return true // the same stream goes on
	case err == nil && f != nil && len(f.items) == f.want:
		if version != h.version { // events were missed
			h.endJoinedLocked()
			h.history.reset(version)
		}
		if version < h.version { // etcd was restored from a backup
			h.kept = keptSnapshots{}
			h.restartClaimsLocked(version)
		}
		h.objects = newTree(f.items)
		h.synced, h.version, h.lastEvent = true, version, version
		h.advancedLocked()
		return true
	default:
		klog.ErrorS(err, "Cannot follow the watch cache, which is filled again", "resource", h.cfg.Resource, "resourceVersion", resourceVersion, "at", h.version)
		h.synced = false
		h.endJoinedLocked()
		return false
	}
}

func (h *Hub) advancedLocked() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// tap passes a watch on, and shows the hub what was received.
type tap struct {
	watch.Interface

	hub     *Hub
	result  chan watch.Event
	stopped chan struct{}
	ended   chan struct{}
	once    sync.Once
}

// ResultChan implements watch.Interface.
func (t *tap) ResultChan() <-chan watch.Event { return t.result }

// Stop implements watch.Interface.
func (t *tap) Stop() {
	t.once.Do(func() { close(t.stopped) })
	t.Interface.Stop()
}

func (t *tap) run() {
	defer close(t.ended)
	defer close(t.result)
	for {
		var received watch.Event
		var ok bool
		select {
		case received, ok = <-t.Interface.ResultChan():
			if !ok {
				return
			}
		case <-t.stopped:
			return
		}
		if undecodable := t.hub.cfg.Undecodable; received.Type == watch.Error && undecodable != nil && undecodable() {
			// Upstream's reflector would watch from the same version again, and never pass the object.
			status := apierrors.NewResourceExpired("an object cannot be decoded").Status()
			received.Object = &status
		}
		e := t.hub.eventOf(received)
		if e != nil && e.kind != watch.Bookmark {
			received.Object = t.hub.aged(e)
		}
		select {
		case t.result <- received:
		case <-t.stopped:
			return
		}
		if e != nil {
			t.hub.apply(e)
		}
	}
}

// eventOf prepares an event before the watch cache gets it.
func (h *Hub) eventOf(received watch.Event) *event {
	obj := received.Object
	if timed, ok := obj.(storage.WatchEventWithRecordTime); ok {
		obj = timed.Unwrap()
	}
	if received.Type == watch.Error {
		return nil
	}
	version, err := h.cfg.Versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil // the watch cache cannot use it either
	}
	e := &event{kind: received.Type, version: version, time: time.Now()}
	if received.Type == watch.Bookmark {
		return e
	}
	e.key, e.obj, e.bytes = h.cfg.KeyFunc(obj), obj, bytesOf(obj)
	h.current.Store(&item{e.key, obj})
	if e.hashes, err = hashesOf(obj); err != nil {
		klog.ErrorS(err, "Cannot hash an object", "resource", h.cfg.Resource, "key", e.key)
	}
	return e
}

// apply takes an event in and hands it to the watchers that want it.
func (h *Hub) apply(e *event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.synced || e.version < h.lastEvent && e.kind != watch.Bookmark {
		return
	}
	switch e.kind {
	case watch.Bookmark:
	case watch.Deleted:
		if last := h.objects.remove(e.key); last != nil {
			e.since, _ = h.cfg.Versioner.ObjectResourceVersion(last)
		}
		e.previous = e.obj // its last state
	default:
		e.previous = h.objects.set(e.key, e.obj)
	}
	if e.version > h.version {
		h.version = e.version
	}
	h.written += e.bytes
	h.kept.expire(e.time, h.written)
	if e.kind != watch.Bookmark {
		h.lastEvent = e.version
		h.history.add(e, h.keepsLocked(e.time))
		h.expireLaterLocked()
		h.dispatchLocked(e)
	}
	h.advancedLocked()
}

// changesLocked returns what is closed when the version grows.
func (h *Hub) changesLocked() chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// WaitFresh waits until the hub follows the watch cache and has seen everything up
// to a version. It returns the error that clients get for a version in the future,
// or Filling.
func (h *Hub) WaitFresh(ctx context.Context, version uint64) error {
	var timeout, again *time.Timer
	for {
		h.mu.Lock()
		if h.synced && version <= h.version {
			h.mu.Unlock()
			return nil
		}
		at, synced, changed := h.version, h.synced, h.changesLocked()
		h.mu.Unlock()

		if timeout == nil {
			timeout, again = time.NewTimer(freshTimeout), time.NewTimer(askAgain)
			defer timeout.Stop()
			defer again.Stop()
			h.cfg.WantProgress()
		}
		select {
		case <-changed:
		case <-again.C:
			h.cfg.WantProgress()
			again.Reset(askAgain)
		case <-timeout.C:
			if !synced {
				return h.Filling()
			}
			return storage.NewTooLargeResourceVersionError(version, at, retryAfterSeconds)
		case <-h.done:
			return context.Canceled
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// LastChange returns the version of the latest event, after it has seen everything up to a version.
func (h *Hub) LastChange(ctx context.Context, version uint64) (uint64, error) {
	if err := h.WaitFresh(ctx, version); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastEvent, nil
}

// GetAt returns the object of a key as of a version or later, nil if there is none, and false if
// the hub is not that far and does not get there soon. The object is shared: do not change it.
func (h *Hub) GetAt(ctx context.Context, key string, version uint64) (runtime.Object, bool) {
	h.mu.Lock()
	synced := h.synced
	h.mu.Unlock()
	if !synced || h.WaitFresh(ctx, version) != nil {
		return nil, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.objects.get(key), h.synced && version <= h.version
}

// Filling is what clients are told while the watch cache is being filled: to try
// again.
func (h *Hub) Filling() error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("the watch cache of %s is being filled: try again", h.cfg.Resource), retryAfterSeconds)
}

// shown returns an object as it is shown.
func (h *Hub) shown(obj runtime.Object) runtime.Object {
	if h.cfg.Shown == nil {
		return obj
	}
	return h.cfg.Shown(obj)
}

// Version returns the resource version up to which the hub has seen everything.
func (h *Hub) Version() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}
