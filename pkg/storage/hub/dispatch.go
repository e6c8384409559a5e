package hub

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

// dispatchClaimedLocked hands an event to those watchers of a claim set that are found by
// it. The set's selector is asked once for all of them.
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

// endStaleLocked ends the watches of a claim set that may not be what it should be: their
// clients resume, where and when it is. It reports whether it is so.
func (h *Hub) endStaleLocked(c *claimants) bool {
	if c.Set.Current() == nil {
		return false
	}
	for w := range c.watchers {
		w.endLocked()
	}
	return true
}
