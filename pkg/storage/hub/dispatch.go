package hub

// dispatchLocked sends an event to the watchers with ranges that contain it. Those that are behind read it
// from the history.
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

// fallBehindLocked makes a watcher with a full buffer read from the history, from event n on, so that
// it does not block others.
func (w *Watcher) fallBehindLocked(n uint64) {
	w.behind, w.cursor, w.from = true, n, n
	if !w.hub.startLocked(w.catchUp) {
		w.endLocked()
		close(w.result)
	}
}

// dispatchClaimedLocked sends an event to watchers of a claim set. The set's selection is evaluated once
// for all of them.
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

// endStaleLocked ends the watches of a claim set that is not current, and reports whether it did. Their clients
// resume when the set is current.
func (h *Hub) endStaleLocked(c *claimants) bool {
	if c.Set.Current() == nil {
		return false
	}
	for w := range c.watchers {
		w.endLocked()
	}
	return true
}
