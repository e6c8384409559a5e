package hub

import (
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// A watcher that is behind reads in the history, on a goroutine of its own.

// batch is how many events it takes at a time.
const batch = 64

// taken is an event for a watcher, with what its claim set held then.
type taken struct {
	*event

	claimed claims.Selection
	// missed is as what it is told of what the watcher has missed, if it is.
	missed watch.EventType
}

// catchUp sends from the history until nothing is left.
func (w *Watcher) catchUp() {
	var events [batch]taken
	for {
		n, t, more := w.take(events[:])
		if !more {
			return
		}
		goOn := true
		for i := 0; i < n && goOn; i++ {
			goOn = events[i].event == nil || w.sendTaken(&events[i])
		}
		if goOn && t != nil {
			goOn = w.tell(t)
		}
		if !goOn {
			w.Stop()
			close(w.result)
			return
		}
	}
}

// sendTaken sends what a watcher gets to see of an event, and returns whether it goes on.
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

// take fills events with the next ones for the watcher, and returns what is to be told
// after them. Those that it does not want are nil. It returns false when none is left, and
// then the hub sends.
func (w *Watcher) take(events []taken) (n int, t *told, more bool) {
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
	case w.cursor == l.next && len(w.telling) == 0:
		w.behind, w.slow, w.missed = false, nil, nil
		return 0, nil, false
	}
	end := l.next
	if len(w.telling) > 0 {
		end = w.telling[0].number
	}
	for ; n < len(events) && w.cursor < end; n++ {
		events[n] = w.wantedLocked(l.at(w.cursor))
		w.cursor++
	}
	if len(w.telling) > 0 && w.cursor == end {
		t = w.telling[0]
		w.telling[0] = nil
		w.telling = w.telling[1:]
	}
	return n, t, true
}

// wantedLocked returns the event that a watcher which is behind is at, if it is in its
// scope and ranges.
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
			if !m.tells(e) {
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

// tell sends what a change of the claim set comes to, and a bookmark, since objects that
// are added so have older versions than what was sent before. It returns whether the
// watch goes on.
func (w *Watcher) tell(t *told) bool {
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
