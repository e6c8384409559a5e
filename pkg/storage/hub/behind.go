package hub

import (
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// A watcher that is behind reads from the history, on its own goroutine.

// batch is how many events it takes at a time.
const batch = 64

// taken is an event for a watcher, with the claim set's selection at that time.
type taken struct {
	*event

	claimed claims.Selection
	// missed is the type with which the event is sent if the watcher had missed it.
	missed watch.EventType
}

// catchUp sends from the history until no events remain.
func (w *Watcher) catchUp() {
	var events [batch]taken
	for {
		n, t, more := w.take(events[:])
		if !more {
			return
		}
		proceed := true
		for i := 0; i < n && proceed; i++ {
			proceed = events[i].event == nil || w.sendTaken(&events[i])
		}
		if proceed && t != nil {
			proceed = w.sendUpdate(t)
		}
		if !proceed {
			w.Stop()
			close(w.result)
			return
		}
	}
}

// sendTaken sends an event if the watcher selects it, and reports whether the watch continues.
func (w *Watcher) sendTaken(e *taken) bool {
	var cache eventCache
	if e.missed != "" {
		return w.send(watch.Event{Type: e.missed, Object: cache.shared(w.hub, e.event)})
	}
	is, was := w.selects(e.event, &cache)
	if w.claims != nil {
		is, was = is && e.claimed.Matches(e.obj), was && e.claimed.Matches(e.previous)
	}
	out, ok := w.convert(e.event, &cache, is, was)
	return !ok || w.send(out)
}

// take fills events with the next ones for the watcher, and returns the claim update that follows them.
// Events that the watcher does not select are nil. It returns false if none remains; from then on the hub sends.
func (w *Watcher) take(events []taken) (n int, t *claimUpdate, more bool) {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.history
	switch {
	case w.stopped:
		close(w.result)
		return 0, nil, false
	case w.cursor < l.first:
		w.tooSlow()
		w.endLocked()
		close(w.result)
		return 0, nil, false
	case w.cursor == l.next && len(w.pendingUpdates) == 0:
		w.behind, w.slow, w.missed = false, nil, nil
		return 0, nil, false
	}
	end := l.next
	if len(w.pendingUpdates) > 0 {
		end = w.pendingUpdates[0].number
	}
	for ; n < len(events) && w.cursor < end; n++ {
		events[n] = w.wantedLocked(l.at(w.cursor))
		w.cursor++
	}
	if len(w.pendingUpdates) > 0 && w.cursor == end {
		t = w.pendingUpdates[0]
		w.pendingUpdates[0] = nil
		w.pendingUpdates = w.pendingUpdates[1:]
	}
	return n, t, true
}

// wantedLocked returns the event at the watcher's cursor if it is in its scope and ranges.
func (w *Watcher) wantedLocked(e *event) taken {
	if !inScope(w.request.Key, e.key) {
		return taken{}
	}
	if !w.ranges.match(e.hashes) {
		if w.cursor < w.from {
			w.hub.countFiltered(1)
		}
		return taken{}
	}
	if w.claims == nil {
		return taken{event: e}
	}
	if m := w.missed; m != nil && w.cursor < m.until {
		if _, changed := m.of[w.hub.claimKey(e.key)]; changed {
			if !m.delivers(e) {
				return taken{}
			}
			return taken{event: e, missed: m.kind(e)}
		}
	}
	claimed := w.claimedLocked(e)
	if !claimed.Held() {
		return taken{}
	}
	return taken{event: e, claimed: claimed}
}

// sendUpdate sends the events of a claim update, and a bookmark, because added objects have older versions than
// events before. It reports whether the watch continues.
func (w *Watcher) sendUpdate(t *claimUpdate) bool {
	t.compare()
	for i := range t.items {
		it := &t.items[i]
		if !inScope(w.request.Key, it.key) || t.missed == nil && !w.hub.cfg.matches(&w.request.Predicate, it.obj) {
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
	// A watcher that resumes has not caught up yet.
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

// claimedLocked returns the selection of the watcher's claim set for the logical cluster of an event, as of that event.
func (w *Watcher) claimedLocked(e *event) claims.Selection {
	key := w.hub.claimKey(e.key)
	for _, t := range w.pendingUpdates {
		if t.missed == nil && len(t.prefixes) > 0 && t.prefixes[0].prefix == key {
			return t.prefixes[0].spans[0].selection
		}
	}
	return w.hub.claimOfLocked(w.claims, key)
}
