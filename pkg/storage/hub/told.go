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
	cfg *Config
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
	cfg     *Config
	request *Request
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
		case c.showed(it.obj, t.cfg.versionOf(it.obj), forever) && t.missed.wants(it.obj):
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
			since = m.cfg.versionOf(e.previous)
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

func (m *missed) inScope(key string) bool { return m == nil || inScope(m.request.Key, key) }

// wants reports whether the watcher that resumes, if there is one, selects an object.
func (m *missed) wants(obj runtime.Object) bool {
	return m == nil || m.cfg.matches(&m.request.Predicate, obj)
}

// skip has the events of an object not told.
func (m *missed) skip(key string) {
	if m != nil {
		delete(m.latest, key)
	}
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
		if err := t.cfg.Versioner.UpdateObject(obj, t.version); err != nil {
			klog.ErrorS(err, "Cannot set the resource version of an object", "resource", t.cfg.Resource, "key", it.key)
		}
	}
	o := Share(t.cfg.shown(obj))
	if s, ok := o.(*cachingObject); ok {
		it.shared = weak.Make(s)
	}
	return o
}

// change adds what a change of the claim set replaces, and puts in its place.
func (c *compared) change(past *history, change *claims.Change) {
	from := uint64(0)
	if n := len(c.spans); n > 0 {
		from = c.spans[n-1].from
		c.spans = c.spans[:n-1]
	}
	to := forever
	if lagged := change.Lagged(); lagged.Before(time.Now()) {
		to = max(change.Version, past.before(lagged))
	}
	c.spans = append(c.spans, span{change.Before, from, to}, span{change.After, change.Version, forever})
}
