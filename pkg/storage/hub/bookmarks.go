package hub

import (
	"time"

	"k8s.io/klog/v2"
)

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

// sendBookmarks sends the bookmarks that are due, and returns the time of the next, or zero if no
// watcher needs any.
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
		klog.ErrorS(err, "Failed to create a bookmark")
		return
	}
	select {
	case w.result <- bookmark:
		w.nextBookmark = w.bookmarkAfter(now)
	default: // events are pending
	}
}
