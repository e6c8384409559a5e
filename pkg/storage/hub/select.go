package hub

import (
	"strings"
	"weak"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
)

// eventCache is shared by the watchers of one event.
type eventCache struct {
	current, removed runtime.Object
	// attributes are those of the hub's GetAttrs, own those of requests with their own.
	attributes *attributes
	own        map[any]*attributes
	claimed    *claimedLabels
}

// attributes are the labels and fields of an object before and after an event.
type attributes struct {
	labels, previousLabels    labels.Set
	fields, previousFields    fields.Set
	comparable, wasComparable bool
}

// claimedLabels are the name and the labels that claim sets select by.
type claimedLabels struct {
	name    string
	is, was labels.Set
}

// selectsLocked is selects for the current event of the dispatcher.
func (w *Watcher) selectsLocked(e *event, cache *eventCache) (is, was bool) {
	s, number := w.selection, w.hub.history.next
	if s == nil {
		return w.selects(e, cache)
	}
	if s.event != number {
		s.is, s.was = w.selects(e, cache)
		s.event = number
	}
	return s.is, s.was
}

// selects reports whether the selectors match the object after and before an event. The object must be in
// the watcher's ranges.
func (w *Watcher) selects(e *event, cache *eventCache) (is, was bool) {
	is, was = e.kind != watch.Deleted, e.previous != nil
	if !w.unnamed {
		a := cache.attributesFor(w, e)
		pred := &w.request.Predicate
		is = is && a.comparable && pred.MatchesObjectAttributes(a.labels, a.fields)
		was = was && a.wasComparable && pred.MatchesObjectAttributes(a.previousLabels, a.previousFields)
	}
	return is, was
}

// convert returns the event for a watcher. An object that starts to match the selectors is added, and one
// that no longer matches is deleted.
func (w *Watcher) convert(e *event, cache *eventCache, is, was bool) (watch.Event, bool) {
	switch {
	case is && was:
		return watch.Event{Type: watch.Modified, Object: cache.shared(w.hub, e)}, true
	case is:
		return watch.Event{Type: watch.Added, Object: cache.shared(w.hub, e)}, true
	case was:
		return watch.Event{Type: watch.Deleted, Object: cache.last(w.hub, e)}, true
	default:
		return watch.Event{}, false
	}
}

// attributesFor returns the attributes for the selectors of a watcher. They are computed once for all
// watchers with the same GetAttrs.
func (s *eventCache) attributesFor(w *Watcher, e *event) *attributes {
	key := w.request.Attributes
	if key == nil {
		if s.attributes == nil {
			s.attributes = w.hub.attributesOf(e, w.hub.cfg.GetAttrs)
		}
		return s.attributes
	}
	a := s.own[key]
	if a == nil {
		if s.own == nil {
			s.own = map[any]*attributes{}
		}
		a = w.hub.attributesOf(e, w.request.Predicate.GetAttrs)
		s.own[key] = a
	}
	return a
}

func (h *Hub) attributesOf(e *event, getAttrs storage.AttrFunc) *attributes {
	a := &attributes{}
	var err error
	if a.labels, a.fields, err = getAttrs(e.obj); err != nil {
		klog.ErrorS(err, "Failed to match an object", "resource", h.cfg.Resource, "key", e.key)
	}
	a.comparable = err == nil
	if e.previous != nil {
		a.previousLabels, a.previousFields, err = getAttrs(e.previous)
		a.wasComparable = err == nil
	}
	return a
}

// shared returns the object that all watchers share.
func (s *eventCache) shared(h *Hub, e *event) runtime.Object {
	if s.current == nil {
		s.current = e.share(h, e.obj, &e.current)
	}
	return s.current
}

// last returns the last state of an object that was deleted, or that a selector no longer matches, with
// the version of the event.
func (s *eventCache) last(h *Hub, e *event) runtime.Object {
	if s.removed != nil {
		return s.removed
	}
	last := e.obj
	if e.kind != watch.Deleted {
		last = Shallow(e.previous)
		if err := h.cfg.Versioner.UpdateObject(last, e.version); err != nil {
			klog.ErrorS(err, "Failed to set the resource version of a deleted object", "resource", h.cfg.Resource, "key", e.key)
		}
	}
	s.removed = e.share(h, last, &e.removed)
	return s.removed
}

// labelsOf returns the labels of an object before and after an event, for all claim sets.
func (s *eventCache) labelsOf(e *event) *claimedLabels {
	if s.claimed == nil {
		s.claimed = &claimedLabels{name: e.key[strings.LastIndexByte(e.key, '/')+1:], is: labelsOf(e.obj), was: labelsOf(e.previous)}
	}
	return s.claimed
}

func labelsOf(obj runtime.Object) labels.Set {
	if obj == nil {
		return nil
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	return object.GetLabels()
}

// share returns the wrapped object that an event's watchers share, as long as one of them has not sent it.
// The pointer is weak, because the history would otherwise keep too many encodings.
func (e *event) share(h *Hub, obj runtime.Object, as *weak.Pointer[cachingObject]) runtime.Object {
	if _, ok := obj.(object); !ok {
		return obj.DeepCopyObject()
	}
	e.sharing.Lock()
	defer e.sharing.Unlock()
	s := as.Value()
	if s == nil {
		if s, _ = Share(h.cfg.Shown(obj)).(*cachingObject); s != nil {
			*as = weak.Make(s)
		}
	}
	return s
}
