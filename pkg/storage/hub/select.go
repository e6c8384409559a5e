package hub

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// eventCache is shared by the watchers of one event.
type eventCache struct {
	current, removed runtime.Object
	// attributes are the results of the hub's GetAttrs, and own the results for requests with their
	// own Attributes.
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

// selects reports whether the selectors match the object, which is in the ranges, after and before an event.
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

// convert returns the event for a watcher. An object that no longer matches the selectors is deleted.
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

// attributesFor returns the attributes for the selectors of a watcher.
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
		h.cfg.Logger.Error(err, "Failed to match an object", "resource", h.cfg.Resource, "key", e.key)
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
		s.current = e.current.get(func() runtime.Object { return h.cfg.Shown(e.obj) })
	}
	return s.current
}

// last returns the last state of an object that was deleted or does not match any more, with the event's version.
func (s *eventCache) last(h *Hub, e *event) runtime.Object {
	if s.removed == nil {
		s.removed = e.removed.get(func() runtime.Object {
			if e.kind == watch.Deleted {
				return h.cfg.Shown(e.obj)
			}
			return h.cfg.deleted(e.key, e.previous, e.version)
		})
	}
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
