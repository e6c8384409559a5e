package hub

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Upstream's watch cache keeps each event of the last 75 s, with the state of the object before
// it, and as many for ever once no more come. The hub keeps the same while anybody watches, or
// may come back, and forgets in time. So that not both do, the watch cache is told then that its
// events are older than they are, and keeps a hundred of them.

// keepsLocked reports whether the hub keeps events for those who watch, or did so lately.
func (h *Hub) keepsLocked(now time.Time) bool {
	return len(h.watchers) > 0 || now.Sub(h.lastWatched) < historyTime
}

// agedObject is the object of an event for the watch cache, with the time of the event.
type agedObject struct {
	runtime.Object

	at time.Time
}

var (
	_ storage.WatchEventWithRecordTime = agedObject{}
	_ metav1.ObjectMetaAccessor        = agedObject{}
)

// RecordTime implements storage.WatchEventWithRecordTime.
func (a agedObject) RecordTime() time.Time { return a.at }

// Unwrap implements storage.WatchEventWithRecordTime.
func (a agedObject) Unwrap() runtime.Object { return a.Object }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (a agedObject) GetObjectMeta() metav1.Object {
	m, _ := meta.Accessor(a.Object)
	return m
}

// aged returns the object of an event as the watch cache gets it. Its times never go back.
func (h *Hub) aged(e *event) runtime.Object {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keepsLocked(e.time) {
		h.older += historyTime
	}
	return agedObject{e.obj, e.time.Add(h.older)}
}

// expireLaterLocked sees to it that the history does not outlive its time when nothing is added.
func (h *Hub) expireLaterLocked() {
	if h.expiring == nil && h.history.len() > historyIdle {
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

// CutShort reports whether the hub, which keeps events, has lately forgotten some before their
// time, as there were too many: the watch cache does not have them, but etcd does.
func (h *Hub) CutShort() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	return h.keepsLocked(now) && now.Sub(h.history.cut) < historyTime
}
