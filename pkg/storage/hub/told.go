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
	// missed is nil for all watchers of the claim set.
	missed *missed

	once    sync.Once
	objects *snapshot // until they are compared
	items   []toldItem
	sharing sync.Mutex
}

// missed is what a watcher that resumes has missed. Of the logical clusters whose claims
// have changed it is told how things are now, instead of the events until now: of what has
// not changed since the version that it resumes from at once, and of the rest when it
// comes to the latest event of each object. So it has seen all up to the version of what
// it is told last, and may resume from any.
type missed struct {
	watcher *Watcher
	// of are the logical clusters, with their place among the prefixes, and until the
	// number of the first event that is told as any other.
	of    map[string]int
	until uint64
	// latest are the latest events of the objects that have changed and are there, and,
	// once compared, of those that are to be seen.
	latest map[string]*event
	// events are all of them, until they are compared.
	events []*event
	// had has, of the objects that have changed, whether the watcher had them when it began.
	had map[string]had
}

// had is whether a watcher had an object when it began, as far as that is certain. Of one that
// resumes it never is: it may have watched elsewhere.
type had struct{ yes, certain bool }

// tells reports whether an event in one of the logical clusters is told.
func (m *missed) tells(e *event) bool { return m.latest[e.key] == e }

// compared is a logical cluster of which a claim set holds other objects than before.
type compared struct {
	prefix string
	now    claims.Selection
	// spans are what the set held before, and, for who resumes, what it holds now.
	spans []span
	// began is what the set may have held when a watcher that was told of the objects here
	// began; without any it was told elsewhere.
	began []claims.Selection
}

// had returns what is known of whether the watcher had an object that was so when it began; nil is none.
func (c *compared) had(m *missed, obj runtime.Object) had {
	if m == nil || len(c.began) == 0 {
		return had{}
	}
	matches := 0
	for _, selection := range c.began {
		if obj != nil && selection.Matches(obj) {
			matches++
		}
	}
	switch {
	case matches == 0 || !m.wants(obj):
		return had{certain: true}
	default:
		return had{yes: true, certain: matches == len(c.began)}
	}
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
	shared  weak.Pointer[cachingObject]
}

// compare finds what to tell, once. It takes no lock of the hub.
func (t *told) compare() {
	t.once.Do(func() {
		for i := range t.prefixes {
			t.comparePrefix(&t.prefixes[i])
		}
		t.objects = nil
		if t.missed != nil {
			t.missed.events = nil
		}
	})
}

func (t *told) comparePrefix(c *compared) {
	gone := t.missed.showedIn(c)
	t.objects.from(c.prefix, func(it item) bool {
		if !strings.HasPrefix(it.key, c.prefix) {
			return false
		}
		switch {
		case !t.missed.inScope(it.key):
		case c.now.Matches(it.obj) && t.missed.wants(it.obj):
			t.missed.keep(gone, it.key)
			if t.missed == nil && !c.showed(it.obj, 0, forever) || t.missed != nil && t.missed.latest[it.key] == nil && c.had(t.missed, it.obj) != (had{true, true}) {
				t.items = append(t.items, toldItem{item: it})
			}
		case c.showed(it.obj, t.hub.versionOf(it.obj), forever) && t.missed.wants(it.obj):
			before := t.missed.before(c, it)
			t.missed.skip(it.key)
			delete(gone, it.key)
			if before != (had{certain: true}) {
				t.items = append(t.items, toldItem{item: it, deleted: true})
			}
		default:
			t.missed.skip(it.key)
		}
		return true
	})
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		t.items = append(t.items, toldItem{item: item{key, gone[key]}, deleted: true})
	}
}

const forever = ^uint64(0)

// showedIn returns the objects that who resumes may have, in the last state that it may
// have seen, among those that have changed since.
func (m *missed) showedIn(c *compared) map[string]runtime.Object {
	gone := map[string]runtime.Object{}
	if m == nil {
		return gone
	}
	for _, e := range m.events {
		if !strings.HasPrefix(e.key, c.prefix) {
			continue
		}
		if _, known := m.had[e.key]; !known {
			m.had[e.key] = c.had(m, e.previous)
		}
		if e.previous == nil || m.had[e.key] == (had{certain: true}) {
			continue
		}
		since := e.since
		if e.kind != watch.Deleted {
			since = m.watcher.hub.versionOf(e.previous)
		}
		if c.showed(e.previous, since, e.version) && m.wants(e.previous) {
			gone[e.key] = e.previous
		}
	}
	return gone
}

// before returns what is known of whether the watcher had an object when it began.
func (m *missed) before(c *compared, it item) had {
	if m != nil {
		if before, changed := m.had[it.key]; changed {
			return before
		}
	}
	return c.had(m, it.obj)
}

// keep has an object that is there not told as gone, unless the watcher had another one of its
// name.
func (m *missed) keep(gone map[string]runtime.Object, key string) {
	if m == nil || m.latest[key] == nil || m.latest[key].kind != watch.Added || !m.had[key].certain {
		delete(gone, key)
	}
}

// kind returns as what the latest event of an object is told.
func (m *missed) kind(e *event) watch.EventType {
	if e.kind != watch.Added && m.had[e.key] == (had{true, true}) {
		return watch.Modified
	}
	return watch.Added
}

func (m *missed) inScope(key string) bool { return m == nil || inScope(m.watcher.request.Key, key) }

// wants reports whether the watcher that resumes, if there is one, selects an object.
func (m *missed) wants(obj runtime.Object) bool { return m == nil || m.watcher.matches(obj) }

// skip has the events of an object not told.
func (m *missed) skip(key string) {
	if m != nil {
		delete(m.latest, key)
	}
}

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
	if s, ok := o.(*cachingObject); ok {
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
		if !inScope(w.request.Key, it.key) || t.missed == nil && !w.matches(it.obj) {
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
	// Who resumes has yet to come to now.
	if t.missed != nil || !w.request.Predicate.AllowWatchBookmarks {
		return true
	}
	bookmark, err := w.hub.bookmark(t.version)
	if err != nil {
		w.fail(err)
		return false
	}
	return w.send(bookmark)
}

// missedLocked has a watcher that joins after a version told of the changes of its claim
// set since it began, instead of the events since then in the logical clusters that have
// changed: what can be seen of these is not what could be. A bookmark says that it has
// been told.
func (w *Watcher) missedLocked(version uint64) error {
	h, c := w.hub, w.claims
	c.Set.Advance(h.version) // nobody may have wanted bookmarks, with which this is done, too
	changes, err := c.Set.Missed(w.begins, w.started)
	if err != nil || len(changes) == 0 {
		return err
	}
	m := &missed{watcher: w, of: map[string]int{}, until: h.history.next, latest: map[string]*event{}, had: map[string]had{}}
	t := &told{hub: h, number: w.cursor, version: version, missed: m}
	for i := range changes {
		key := c.prefix(changes[i].Cluster)
		if !strings.HasPrefix(key, w.request.Key) && !strings.HasPrefix(w.request.Key, key) {
			continue
		}
		n, known := m.of[key]
		if !known {
			n = len(t.prefixes)
			m.of[key] = n
			t.prefixes = append(t.prefixes, compared{prefix: key, now: h.claimOfLocked(c, key)})
		}
		t.prefixes[n].change(h, &changes[i])
		if w.started && !known {
			t.prefixes[n].began = append(t.prefixes[n].began, changes[i].Before)
		}
		if w.started && changes[i].Revision <= w.begins { // it may have come before what was told, or after
			t.prefixes[n].began = append(t.prefixes[n].began, changes[i].After)
		}
	}
	if len(t.prefixes) == 0 {
		return nil
	}
	for n := w.cursor; n < m.until; n++ {
		e := h.history.at(n)
		if _, changed := m.of[h.claimKey(e.key)]; changed && inScope(w.request.Key, e.key) {
			m.events = append(m.events, e)
			if m.latest[e.key] = e; e.kind == watch.Deleted {
				m.skip(e.key)
			}
		}
	}
	t.objects = h.objects.snapshot()
	w.missed, w.telling = m, []*told{t, {hub: h, number: m.until, version: h.version}}
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
	for _, t := range w.telling {
		if t.missed == nil && len(t.prefixes) > 0 && t.prefixes[0].prefix == key {
			return t.prefixes[0].spans[0].selection
		}
	}
	return w.hub.claimOfLocked(w.claims, key)
}
