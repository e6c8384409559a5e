package hub

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// maxPendingUpdates is the maximum number of pending claim updates of a watcher. A watcher with more is too slow.
//
//reference:limit watch | pending changes of permission claims | the watch ends
const maxPendingUpdates = 1000

// claimUpdate contains the objects that a change of a claim set adds and deletes for its watchers.
type claimUpdate struct {
	cfg *Config
	// number is the number of the event that follows the update, version the version before that event.
	number, version uint64
	prefixes        []compared
	// missed is nil if the update is for all watchers of the claim set.
	missed *missed

	once    sync.Once
	objects *snapshot // nil after the comparison
	items   []updateItem
}

// missed are the changes that a resuming watcher has missed. For logical clusters with changed claims, it receives the
// current state instead of the events. Objects that have not changed since its version are sent immediately, and others
// at their latest event. Therefore, it may resume from any event.
type missed struct {
	cfg     *Config
	request *Request
	// of are the logical clusters, with their index in prefixes. until is the first event that is sent unchanged.
	of    map[string]int
	until uint64
	// latest are the latest events of existing changed objects; after the comparison, those that the watcher may read.
	latest map[string]*event
	// events are all these events, until the comparison.
	events []*event
	// had reports for changed objects whether the watcher had them when it began.
	had map[string]had
}

// had is whether a watcher had an object when it began. It is not certain if it may have watched another replica.
type had struct{ yes, certain bool }

// compared is a logical cluster with a changed selection in a claim set.
type compared struct {
	prefix string
	now    claims.Selection
	// spans are the previous selections and, for watchers that resume, the current one.
	spans []span
	// began are the possible selections when a watcher began; empty if it received the initial objects elsewhere.
	began []claims.Selection
}

// had returns whether the watcher had an object with this state when it began; nil is no object.
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

// span is a selection with the range of versions in which it was effective.
type span struct {
	selection claims.Selection
	from, to  uint64
}

// mayHaveSent reports whether a state of an object, which was current from since until end, may have been sent.
func (c *compared) mayHaveSent(obj runtime.Object, since, end uint64) bool {
	for _, s := range c.spans {
		if s.from < end && since <= s.to && s.selection.Matches(obj) {
			return true
		}
	}
	return false
}

type updateItem struct {
	item

	deleted bool
	shared  sharedObject
}

// compare computes the items of the update once. It does not take the hub's lock.
func (t *claimUpdate) compare() {
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

func (t *claimUpdate) comparePrefix(c *compared) {
	removed := t.missed.sentObjects(c)
	t.objects.from(c.prefix, func(it item) bool {
		if !strings.HasPrefix(it.key, c.prefix) {
			return false
		}
		switch {
		case !t.missed.inScope(it.key):
		case c.now.Matches(it.obj) && t.missed.wants(it.obj):
			t.missed.keep(removed, it.key)
			if t.missed == nil && !c.mayHaveSent(it.obj, 0, forever) || t.missed != nil && t.missed.latest[it.key] == nil && c.had(t.missed, it.obj) != (had{true, true}) {
				t.items = append(t.items, updateItem{item: it})
			}
		case c.mayHaveSent(it.obj, t.cfg.versionOf(it.obj), forever) && t.missed.wants(it.obj):
			before := t.missed.before(c, it)
			t.missed.skip(it.key)
			delete(removed, it.key)
			if before != (had{certain: true}) {
				t.items = append(t.items, updateItem{item: it, deleted: true})
			}
		default:
			t.missed.skip(it.key)
		}
		return true
	})
	for _, key := range slices.Sorted(maps.Keys(removed)) {
		t.items = append(t.items, updateItem{item: item{key, removed[key]}, deleted: true})
	}
}

const forever = ^uint64(0)

// sentObjects returns the changed objects that a resuming watcher may have, in the last state that it may have
// received.
func (m *missed) sentObjects(c *compared) map[string]runtime.Object {
	removed := map[string]runtime.Object{}
	if m == nil {
		return removed
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
		if c.mayHaveSent(e.previous, since, e.version) && m.wants(e.previous) {
			removed[e.key] = e.previous
		}
	}
	return removed
}

// before returns whether the watcher had an object when it began.
func (m *missed) before(c *compared, it item) had {
	if m != nil {
		if before, changed := m.had[it.key]; changed {
			return before
		}
	}
	return c.had(m, it.obj)
}

// keep prevents a deletion of an existing object, unless the watcher had another object with this name.
func (m *missed) keep(removed map[string]runtime.Object, key string) {
	if m == nil || m.latest[key] == nil || m.latest[key].kind != watch.Added || !m.had[key].certain {
		delete(removed, key)
	}
}

// kind returns the type with which the latest event of an object is sent.
func (m *missed) kind(e *event) watch.EventType {
	if e.kind != watch.Added && m.had[e.key] == (had{true, true}) {
		return watch.Modified
	}
	return watch.Added
}

func (m *missed) inScope(key string) bool { return m == nil || inScope(m.request.Key, key) }

// wants reports whether the resuming watcher, if there is one, selects an object.
func (m *missed) wants(obj runtime.Object) bool {
	return m == nil || m.cfg.matches(&m.request.Predicate, obj)
}

// skip prevents events of an object.
func (m *missed) skip(key string) {
	if m != nil {
		delete(m.latest, key)
	}
}

// share returns the wrapped object that watchers share. A deleted object has the version of the update.
func (t *claimUpdate) share(it *updateItem) runtime.Object {
	return it.shared.get(func() runtime.Object {
		if it.deleted {
			return t.cfg.deleted(it.key, it.obj, t.version)
		}
		return t.cfg.Shown(it.obj)
	})
}

// change replaces the last span by the selections before and after a change of the claim set.
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
