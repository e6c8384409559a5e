package hub

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// tellingMax is how many changes of its claim set a watcher may have yet to tell. Who is
// further behind is too slow.
const tellingMax = 1000

// told is what watchers of a claim set are told when it changes: the objects that they see
// now, and those that they see no longer.
type told struct {
	hub *Hub
	// number is that of the event before which it is told, version the one until then.
	number, version uint64
	prefixes        []compared
	// resuming is the watcher that it is for, if it is what that one missed; missed
	// are the events that it is told of in this way only.
	resuming *Watcher
	missed   []*event

	once    sync.Once
	objects *snapshot // until they are compared
	items   []toldItem
	sharing sync.Mutex
}

// compared is a logical cluster of which a claim set holds other objects than before.
type compared struct {
	prefix string
	now    claims.Selection
	// spans are what the set held before, and, for who resumes, what it holds now.
	spans []span
}

// span is a selection with the versions from and until which it counts.
type span struct {
	selection claims.Selection
	from, to  uint64
}

// showed reports whether an object that was as it is from one version to another can have
// been seen.
func (c *compared) showed(obj runtime.Object, since, end uint64) bool {
	for _, s := range c.spans {
		if s.from < end && since <= s.to && s.selection.Matches(obj) {
			return true
		}
	}
	return false
}

type toldItem struct {
	item

	deleted bool
	shared  weak.Pointer[shared]
}

// compare finds what to tell, once. It takes no lock of the hub.
func (t *told) compare() {
	t.once.Do(func() {
		for i := range t.prefixes {
			t.comparePrefix(&t.prefixes[i])
		}
		t.objects, t.missed = nil, nil
	})
}

func (t *told) comparePrefix(c *compared) {
	gone := t.missedIn(c)
	t.objects.from(c.prefix, func(it item) bool {
		if !strings.HasPrefix(it.key, c.prefix) {
			return false
		}
		switch {
		case t.resuming != nil && !inScope(t.resuming.request.Key, it.key):
		case c.now.Matches(it.obj) && t.wanted(it.obj):
			delete(gone, it.key)
			if t.resuming != nil || !c.showed(it.obj, 0, forever) {
				t.items = append(t.items, toldItem{item: it})
			}
		case c.showed(it.obj, t.hub.versionOf(it.obj), forever) && t.wanted(it.obj):
			delete(gone, it.key)
			t.items = append(t.items, toldItem{item: it, deleted: true})
		}
		return true
	})
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		t.items = append(t.items, toldItem{item: item{key, gone[key]}, deleted: true})
	}
}

const forever = ^uint64(0)

// missedIn returns the objects that who resumes may have, in the last state that it may
// have seen, among those that have changed since.
func (t *told) missedIn(c *compared) map[string]runtime.Object {
	gone := map[string]runtime.Object{}
	for _, e := range t.missed {
		if e.previous == nil || !strings.HasPrefix(e.key, c.prefix) {
			continue
		}
		since := e.since
		if e.kind != watch.Deleted {
			since = t.hub.versionOf(e.previous)
		}
		if c.showed(e.previous, since, e.version) && t.wanted(e.previous) {
			gone[e.key] = e.previous
		}
	}
	return gone
}

// wanted reports whether the watcher that resumes, if it is for one, selects an object.
func (t *told) wanted(obj runtime.Object) bool { return t.resuming == nil || t.resuming.matches(obj) }

func (w *Watcher) matches(obj runtime.Object) bool {
	matches, err := w.request.Predicate.Matches(obj)
	if err != nil {
		klog.ErrorS(err, "Cannot match an object", "resource", w.hub.cfg.Resource)
	}
	return matches
}

func (h *Hub) versionOf(obj runtime.Object) uint64 {
	version, err := h.cfg.Versioner.ObjectResourceVersion(obj)
	if err != nil {
		klog.ErrorS(err, "Cannot tell the version of an object", "resource", h.cfg.Resource)
	}
	return version
}

// share returns what watchers share of an object, with the version from which on it is
// not seen any more, if so.
func (t *told) share(it *toldItem) runtime.Object {
	t.sharing.Lock()
	defer t.sharing.Unlock()
	if s := it.shared.Value(); s != nil {
		return s
	}
	obj := it.obj
	if it.deleted {
		obj = Shallow(obj)
		if err := t.hub.cfg.Versioner.UpdateObject(obj, t.version); err != nil {
			klog.ErrorS(err, "Cannot set the resource version of an object", "resource", t.hub.cfg.Resource, "key", it.key)
		}
	}
	o := Share(t.hub.shown(obj))
	if s, ok := o.(*shared); ok {
		it.shared = weak.Make(s)
	}
	return o
}

// tell sends what a change of the claim set comes to, and a bookmark, since objects that
// are added so have older versions than what was sent before. It returns whether the
// watch goes on.
func (w *Watcher) tell(t *told) bool {
	t.compare()
	for i := range t.items {
		it := &t.items[i]
		if !inScope(w.request.Key, it.key) || t.resuming == nil && !w.matches(it.obj) {
			continue
		}
		kind := watch.Added
		if it.deleted {
			kind = watch.Deleted
		}
		if !w.send(watch.Event{Type: kind, Object: t.share(it)}) {
			return false
		}
	}
	if !w.request.Predicate.AllowWatchBookmarks {
		return true
	}
	bookmark, err := w.hub.bookmark(t.version)
	if err != nil {
		w.fail(err)
		return false
	}
	return w.send(bookmark)
}

// missedLocked has a watcher that joins told of the changes of its claim set since the
// version that it begins after, instead of the events since then in the logical clusters that
// have changed: what can be seen of these is not what could be.
func (w *Watcher) missedLocked() error {
	h, c := w.hub, w.claims
	changes, err := c.Set.Missed(w.begins, w.started)
	if err != nil || len(changes) == 0 {
		return err
	}
	t := &told{hub: h, number: h.history.next, version: h.version, resuming: w}
	of := map[string]int{}
	for i := range changes {
		key := c.prefix(changes[i].Cluster)
		if !strings.HasPrefix(key, w.request.Key) && !strings.HasPrefix(w.request.Key, key) {
			continue
		}
		n, known := of[key]
		if !known {
			n = len(t.prefixes)
			of[key] = n
			t.prefixes = append(t.prefixes, compared{prefix: key})
		}
		t.prefixes[n].change(h, &changes[i])
	}
	if len(t.prefixes) == 0 {
		return nil
	}
	for i := range t.prefixes {
		p := &t.prefixes[i]
		p.now = h.claimOfLocked(c, p.prefix)
	}
	for n := w.cursor; n < h.history.next; n++ {
		e := h.history.at(n)
		if _, changed := of[h.claimKey(e.key)]; changed && inScope(w.request.Key, e.key) {
			t.missed = append(t.missed, e)
		}
	}
	t.objects = h.objects.snapshot()
	w.telling, w.instead, w.insteadUntil = []*told{t}, of, t.number
	return nil
}

// change adds what a change of the claim set replaces, and puts in its place.
func (c *compared) change(h *Hub, change *claims.Change) {
	from := uint64(0)
	if n := len(c.spans); n > 0 {
		from = c.spans[n-1].from
		c.spans = c.spans[:n-1]
	}
	to := forever
	if lagged := change.Lagged(); lagged.Before(time.Now()) {
		to = max(change.Version, h.history.before(lagged))
	}
	c.spans = append(c.spans, span{change.Before, from, to}, span{change.After, change.Version, forever})
}

// claimedLocked reports what the claim set of a watcher that is behind holds of the
// logical cluster of an event, as it was after the event.
func (w *Watcher) claimedLocked(e *event) claims.Selection {
	key := w.hub.claimKey(e.key)
	if _, instead := w.instead[key]; instead && w.cursor < w.insteadUntil {
		return claims.Selection{}
	}
	for _, t := range w.telling {
		if t.resuming == nil && t.prefixes[0].prefix == key {
			return t.prefixes[0].spans[0].selection
		}
	}
	return w.hub.claimOfLocked(w.claims, key)
}
