package hub

import (
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Close ends all watches, including the one of the watch cache, and waits until the watch cache has
// processed the events that it received. The watch cache must not be stopped earlier: upstream's Cacher.Stop
// blocks forever if more events than its channel can buffer arrive after its dispatcher has ended.
func (h *Hub) Close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
	for w := range h.watchers {
		w.endLocked()
	}
	for set := range h.claimed.of {
		set.Unfollow()
	}
	clear(h.claimed.of)
	clear(h.claimed.in)
	if h.expiring != nil {
		h.expiring.Stop()
	}
	h.mu.Unlock()
	h.running.Wait()
}

// Listed is called with each page of the list that fills the watch cache. The objects are collected in Key,
// because the watch cache stores copies, with which the hub shares memory.
func (h *Hub) Listed(first bool, list runtime.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if first || h.filling == nil {
		h.filling = &filling{}
	}
	h.filling.want += meta.LenList(list)
}

// Key is the key function of the watch cache.
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

// Tap returns the watch for the watch cache, which open starts at the version. The hub applies an event when the watch
// cache has received it. If the hub cannot follow, the returned watch has expired, so that both are filled again.
func (h *Hub) Tap(version string, open func() (watch.Interface, error)) (watch.Interface, error) {
	h.mu.Lock()
	await := h.await
	h.mu.Unlock()
	if await != nil {
		await()
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	// Before the watch is opened: the client keeps the stream of a watch that is stopped before etcd has created it.
	if !h.resumeLocked(version) {
		return expired(), nil
	}
	w, err := open()
	if err != nil {
		return nil, err
	}
	t := &tap{Interface: w, hub: h, result: make(chan watch.Event), stopped: make(chan struct{}), ended: make(chan struct{})}
	h.await = t.await
	if !h.startLocked(t.run) {
		close(t.result)
		close(t.ended)
	}
	return t, nil
}

// expired returns a watch that makes its reader list again.
func expired() watch.Interface {
	status := apierrors.NewResourceExpired("the hub has lost track of the watch cache").Status()
	result := make(chan watch.Event, 1)
	result <- watch.Event{Type: watch.Error, Object: &status}
	return watch.NewProxyWatcher(result)
}

// resumeLocked starts to follow a watch from a version, if the hub has all objects of this version.
func (h *Hub) resumeLocked(resourceVersion string) bool {
	version, err := h.cfg.Versioner.ParseResourceVersion(resourceVersion)
	f := h.filling
	h.filling = nil
	switch {
	case err == nil && f == nil && h.synced && version == h.version:
		return true // the same stream continues
	case err == nil && f != nil && len(f.items) == f.want:
		if version != h.version { // events were missed
			h.endJoinedLocked()
			h.history.reset(version)
		}
		if version < h.version { // etcd was restored from a backup
			clear(h.kept)
			for set := range h.claimed.of {
				set.Restart(version)
			}
		}
		h.objects = newTree(f.items)
		h.synced, h.version, h.lastEvent = true, version, version
		h.advancedLocked()
		return true
	default:
		h.cfg.Logger.Error(err, "Lost track of the watch cache, filling it again", "resource", h.cfg.Resource, "resourceVersion", resourceVersion, "at", h.version)
		h.synced = false
		h.endJoinedLocked()
		return false
	}
}

// tap forwards a watch, and applies the received events to the hub.
type tap struct {
	watch.Interface

	hub     *Hub
	result  chan watch.Event
	stopped chan struct{}
	ended   chan struct{}
	once    sync.Once
}

func (t *tap) ResultChan() <-chan watch.Event { return t.result }

func (t *tap) Stop() {
	t.once.Do(func() { close(t.stopped) })
	t.Interface.Stop()
}

// await waits for the end of the tap, which the watch cache has stopped, and of its watch. Two watches must not share
// an etcd stream. Notifications of progress are for all watches of a stream, and the response that creates a watch may
// overtake one. The second watch would then receive the progress of the first, although it lacks events.
func (t *tap) await() {
	<-t.ended
	for range t.Interface.ResultChan() { // until the client has closed the watch, and its stream
	}
}

func (t *tap) run() {
	defer close(t.ended)
	defer func() {
		close(t.result)
		<-t.stopped
	}()
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
		case <-t.hub.done:
			return
		}
		if received.Type == watch.Error && t.hub.cfg.Undecodable() {
			// Upstream's reflector would watch from the same version again, and never continue after the
			// object.
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
		case <-t.hub.done:
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
		h.cfg.Logger.Error(err, "Failed to hash an object", "resource", h.cfg.Resource, "key", e.key)
	}
	return e
}

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
		h.history.add(e)
		h.expireLaterLocked()
		h.dispatchLocked(e)
	}
	h.advancedLocked()
}

// aging is added to the time of each event for the watch cache. Upstream's watch cache keeps the events of the last
// 75 s, forever if no new ones arrive. The hub serves all watches and keeps the same events. To avoid keeping them
// twice, the times of the last hundred events, which the watch cache always keeps, must differ by more than 75 s.
const aging = 2 * time.Second

// agedObject is the object of an event with the time that the watch cache uses.
type agedObject struct {
	runtime.Object

	at time.Time
}

var (
	_ storage.WatchEventWithRecordTime = agedObject{}
	_ metav1.ObjectMetaAccessor        = agedObject{}
)

func (a agedObject) RecordTime() time.Time  { return a.at }
func (a agedObject) Unwrap() runtime.Object { return a.Object }

func (a agedObject) GetObjectMeta() metav1.Object {
	m, _ := meta.Accessor(a.Object)
	return m
}

// aged returns the object of an event for the watch cache. Its times never decrease.
func (h *Hub) aged(e *event) runtime.Object {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.older += aging
	return agedObject{e.obj, e.time.Add(h.older)}
}

// expireLaterLocked schedules the expiration of the history in case no more events are added.
func (h *Hub) expireLaterLocked() {
	if h.expiring == nil && h.history.len() > historyMin {
		h.expiring = time.AfterFunc(historyTime, h.expire)
	}
}

func (h *Hub) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.kept.expire(now, h.written)
	again := h.history.expire(now)
	switch {
	case again.IsZero() || h.closed:
		h.expiring = nil
	default:
		h.expiring.Reset(max(again.Sub(now), time.Second))
	}
}

// Expired returns upstream's error for a watch from a version before the history. It returns nil if the hub has
// recently dropped events before they expired, because there were too many: etcd still has them.
func (h *Hub) Expired(version uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.history.cut) < historyTime {
		return nil
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, h.history.floor))
}
