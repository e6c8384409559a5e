package hub

import (
	"time"
)

// dispatchLocked sends an event to the watchers with ranges that contain it, except those that are behind.
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

// offerLocked sends an event to a watcher that is not behind.
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

// fallBehindLocked makes a watcher with a full buffer read from the history, from event n on.
func (w *Watcher) fallBehindLocked(n uint64) {
	w.behind, w.cursor, w.from = true, n, n
	if !w.hub.startLocked(w.catchUp) {
		w.endLocked()
		close(w.result)
	}
}

// dispatchClaimedLocked sends an event to watchers of a claim set.
func (h *Hub) dispatchClaimedLocked(c claimant, found []*Watcher, e *event, cache *eventCache) {
	l := cache.labelsOf(e)
	held, wasHeld := c.selection.MatchesObject(l.name, l.is), c.selection.MatchesObject(l.name, l.was)
	if !held && !wasHeld {
		return
	}
	for _, w := range found {
		if !w.behind {
			is, was := w.selectsLocked(e, cache)
			h.offerLocked(w, e, cache, is && held, was && wasHeld)
		}
	}
}

// endStaleLocked ends the watches of a claim set that is not current, and reports whether it did.
func (h *Hub) endStaleLocked(c *claimants) bool {
	if c.Set.Current() == nil {
		return false
	}
	for w := range c.watchers {
		w.endLocked()
	}
	return true
}

const (
	bookmarkPeriod = time.Minute
	// bookmarkLead is the time between the last bookmark and the end of a watch.
	bookmarkLead = 2 * time.Second
	// bookmarkPause is the minimum interval of bookmarks.
	bookmarkPause = time.Second
)

// bookmarkAfter returns when the next bookmark is due, or zero for never.
func (w *Watcher) bookmarkAfter(now time.Time) time.Time {
	if !w.request.Predicate.AllowWatchBookmarks {
		return time.Time{}
	}
	next := now.Add(bookmarkPeriod)
	if w.deadline.IsZero() {
		return next
	}
	if last := w.deadline.Add(-bookmarkLead); last.Before(next) {
		next = last
	}
	if next.Before(now) {
		return time.Time{}
	}
	return next
}

// tickForLocked ensures that the watcher receives bookmarks in time.
func (h *Hub) tickForLocked(w *Watcher) {
	switch {
	case w.nextBookmark.IsZero():
	case h.nextTick.IsZero():
		h.nextTick = w.nextBookmark
		h.running.Go(h.tick)
	case w.nextBookmark.Before(h.nextTick):
		h.nextTick = w.nextBookmark
		select {
		case h.sooner <- struct{}{}:
		default: // the ticker is about to run
		}
	}
}

// tick sends bookmarks until no watcher needs them any more.
func (h *Hub) tick() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var next time.Time
		select {
		case now := <-timer.C:
			next = h.sendBookmarks(now)
		case <-h.sooner:
			h.mu.Lock()
			next = h.nextTick
			h.mu.Unlock()
		case <-h.done:
			return
		}
		if next.IsZero() {
			return
		}
		timer.Reset(time.Until(next))
	}
}

// sendBookmarks sends the bookmarks that are due, and returns the time of the next, or zero.
func (h *Hub) sendBookmarks(now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nextTick = time.Time{}
	for set := range h.claimed.of {
		set.Advance(h.version)
	}
	for _, c := range h.claimed.of {
		h.endStaleLocked(c)
	}
	for w := range h.watchers {
		if w.nextBookmark.IsZero() {
			continue
		}
		if !now.Before(w.nextBookmark) && w.joined && !w.behind {
			h.sendBookmarkLocked(w, now)
		}
		if !w.nextBookmark.IsZero() && (h.nextTick.IsZero() || w.nextBookmark.Before(h.nextTick)) {
			h.nextTick = w.nextBookmark
		}
	}
	if soonest := now.Add(bookmarkPause); !h.nextTick.IsZero() && h.nextTick.Before(soonest) {
		h.nextTick = soonest
	}
	return h.nextTick
}

func (h *Hub) sendBookmarkLocked(w *Watcher, now time.Time) {
	bookmark, err := h.Bookmark(h.version)
	if err != nil {
		h.cfg.Logger.Error(err, "Failed to create a bookmark")
		return
	}
	select {
	case w.result <- bookmark:
		w.nextBookmark = w.bookmarkAfter(now)
	default: // events are pending
	}
}
