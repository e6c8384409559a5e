package hub

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Upstream's watch cache keeps each event of the last 75 s with the previous state of the object, and keeps
// them forever if no new events arrive. The hub keeps the same events while there are watches, or
// clients that may resume, and it expires them. To avoid keeping them twice, the hub adds to the events'
// times for the watch cache while it keeps them itself. Then the watch cache keeps only a hundred.

// keepsLocked reports whether the hub keeps events, because there are or recently were watches.
func (h *Hub) keepsLocked(now time.Time) bool {
	return len(h.watchers) > 0 || now.Sub(h.lastWatched) < historyTime
}

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
	if h.keepsLocked(e.time) {
		h.older += historyTime
	}
	return agedObject{e.obj, e.time.Add(h.older)}
}

// expireLaterLocked schedules the expiration of the history in case no more events are added.
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

// CutShort reports whether the hub has recently dropped events before they expired, because there were too
// many. The watch cache does not have them either, but etcd does.
func (h *Hub) CutShort() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	return h.keepsLocked(now) && now.Sub(h.history.cut) < historyTime
}
