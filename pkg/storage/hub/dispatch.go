package hub

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/klog/v2"
)

// eventCache is what the watchers of one event share.
type eventCache struct {
	current, gone runtime.Object
	// attributes are those of the hub, own those of requests with their own.
	attributes *attributes
	own        map[any]*attributes
	claimed    *claimedLabels
}

// attributes are what selectors are matched with, of an object before and after
// an event.
type attributes struct {
	labels, previousLabels    labels.Set
	fields, previousFields    fields.Set
	comparable, wasComparable bool
}

// dispatchLocked hands an event to the watchers whose ranges hold it. Those
// that are behind find it in the history.
func (h *Hub) dispatchLocked(e *event) {
	if len(h.scopes) == 0 && len(h.claimed.of) == 0 {
		return
	}
	var cache eventCache
	found, filtered := h.scopes.find(h.cfg.Root, e.key, e.hashes, h.found[:0])
	for _, w := range found {
		if !w.behind {
			is, was := w.selectsLocked(e, &cache)
			h.offerLocked(w, e, &cache, is, was)
		}
	}
	for _, c := range h.claimed.in[h.claimKey(e.key)] {
		if h.endStaleLocked(c.claimants) {
			continue
		}
		claimants := len(found)
		var others int
		found, others = c.scopes.find(h.cfg.Root, e.key, e.hashes, found)
		filtered += others
		if len(found) > claimants {
			h.dispatchClaimedLocked(c, found[claimants:], e, &cache)
		}
	}
	clear(found)
	h.found = found
	h.countFiltered(filtered)
}

// offerLocked hands an event to a watcher that is not behind.
func (h *Hub) offerLocked(w *Watcher, e *event, cache *eventCache, is, was bool) {
	out, ok := w.convert(e, cache, is, was)
	if !ok {
		return
	}
	select {
	case w.result <- out:
	default:
		w.fallBehindLocked(h.history.next - 1)
	}
}

// fallBehindLocked lets a watcher whose buffer is full go on by itself, from an
// event of the history, so that nobody waits for it.
func (w *Watcher) fallBehindLocked(n uint64) {
	w.behind, w.cursor, w.from = true, n, n
	if !w.hub.startLocked(w.catchUp) {
		w.endLocked()
		close(w.result)
	}
}

func (h *Hub) countFiltered(n int) {
	if n > 0 {
		metrics.WatchFilteredEventsTotal.WithLabelValues(h.cfg.Resource.Group, h.cfg.Resource.Resource).Add(float64(n))
	}
}

// selection is what watchers with equal selectors share: an event is matched with
// them once, however many there are.
type selection struct {
	key      selectionKey
	watchers int
	// event is the number of the event that was matched last, plus one.
	event   uint64
	is, was bool
}

type selectionKey struct {
	labels, fields string
	attributes     any
}

// selectLocked gives a watcher its selection.
func (w *Watcher) selectLocked() {
	key := selectionKey{attributes: w.request.Attributes}
	if s := w.request.Predicate.Label; s != nil {
		key.labels = s.String()
	}
	if s := w.request.Predicate.Field; s != nil {
		key.fields = s.String()
	}
	if w.selection = w.hub.selections[key]; w.selection == nil {
		w.selection = &selection{key: key}
		w.hub.selections[key] = w.selection
	}
	w.selection.watchers++
}

// unselectLocked takes the selection from a watcher.
func (w *Watcher) unselectLocked() {
	if w.selection == nil {
		return
	}
	if w.selection.watchers--; w.selection.watchers == 0 {
		delete(w.hub.selections, w.selection.key)
	}
}

// selectsLocked is selects for the event that is being dispatched.
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

// selects reports whether a watcher in whose ranges the object is wants to see it
// after an event, and whether it wanted to see it before.
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

// convert returns what a watcher gets to see: an object that comes to match its
// selectors is added, and one that ceases to is deleted.
func (w *Watcher) convert(e *event, cache *eventCache, is, was bool) (watch.Event, bool) {
	switch {
	case is && was:
		return watch.Event{Type: watch.Modified, Object: cache.object(w.hub, e)}, true
	case is:
		return watch.Event{Type: watch.Added, Object: cache.object(w.hub, e)}, true
	case was:
		return watch.Event{Type: watch.Deleted, Object: cache.last(w.hub, e)}, true
	default:
		return watch.Event{}, false
	}
}

// attributesFor returns what the selectors of a watcher are matched with. It is
// computed once for all watchers with the same attributes.
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
		klog.ErrorS(err, "Cannot match an object", "resource", h.cfg.Resource, "key", e.key)
	}
	a.comparable = err == nil
	if e.previous != nil {
		a.previousLabels, a.previousFields, err = getAttrs(e.previous)
		a.wasComparable = err == nil
	}
	return a
}

// object returns the object as all watchers share it.
func (s *eventCache) object(h *Hub, e *event) runtime.Object {
	if s.current == nil {
		s.current = e.share(h, e.obj, &e.current)
	}
	return s.current
}

// last returns the last state of an object that is gone, or that a selector
// does not match any more, with the version of that.
func (s *eventCache) last(h *Hub, e *event) runtime.Object {
	if s.gone != nil {
		return s.gone
	}
	last := e.obj
	if e.kind != watch.Deleted {
		last = Shallow(e.previous)
		if err := h.cfg.Versioner.UpdateObject(last, e.version); err != nil {
			klog.ErrorS(err, "Cannot set the resource version of a deleted object", "resource", h.cfg.Resource, "key", e.key)
		}
	}
	s.gone = e.share(h, last, &e.gone)
	return s.gone
}
