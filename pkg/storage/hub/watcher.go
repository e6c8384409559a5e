package hub

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// slowBudget is how long a reader with a full buffer may take for one event before its watch ends.
const slowBudget = 5 * time.Second

// ResultChan implements watch.Interface.
func (w *Watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *Watcher) Stop() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked()
}

// endLocked ends a watch. The side that may still send closes the result: the hub, or the goroutine of a watcher behind.
func (w *Watcher) endLocked() {
	if w.stopped {
		return
	}
	w.stopped = true
	close(w.done)
	if !w.behind {
		close(w.result)
	}
	h := w.hub
	delete(h.watchers, w)
	w.unselectLocked()
	if w.joined {
		w.scopes().remove(w)
	}
	if w.claims != nil {
		delete(w.claims.watchers, w)
		h.unfollowLocked(w.claims)
	}
	if w.release != nil {
		w.release()
	}
	if w.sharded {
		metrics.RecordShardedWatchStopped(h.cfg.Resource)
	}
}

func (w *Watcher) scopes() scopes {
	if w.claims != nil {
		return w.claims.scopes
	}
	return w.hub.scopes
}

// endJoinedLocked ends the watches that are in the index. Others have not missed any events yet.
func (h *Hub) endJoinedLocked() {
	for w := range h.watchers {
		if w.joined {
			w.endLocked()
		}
	}
}

func (w *Watcher) tooSlow() {
	r := w.hub.cfg.Resource
	metrics.TerminatedWatchersCounter.WithLabelValues(r.Group, r.Resource).Inc()
	w.hub.cfg.Logger.V(1).Info("Ending a watch whose client is too slow", "resource", r, "key", w.request.Key)
}

// sendInitial waits for the reader until the watch ends, because initial events do not delay others.
func (w *Watcher) sendInitial(e watch.Event) bool {
	select {
	case w.result <- e:
		return true
	case <-w.done:
		return false
	}
}

// fail sends an error, which is the last event of the watch.
func (w *Watcher) fail(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	status := metav1.Status{Status: metav1.StatusFailure, Message: err.Error(), Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError}
	var api apierrors.APIStatus
	if errors.As(err, &api) {
		status = api.Status()
	}
	w.send(watch.Event{Type: watch.Error, Object: &status})
}

// send waits for the reader for a limited time, on the watcher's goroutine. It reports whether the watch continues.
func (w *Watcher) send(e watch.Event) bool {
	if set := w.request.Claims.Set; set != nil && set.Current() != nil {
		return false
	}
	select {
	case <-w.done:
		return false
	default:
	}
	select {
	case w.result <- e:
		return true
	default:
	}
	if w.slow == nil {
		w.slow = time.NewTimer(slowBudget)
	}
	w.slow.Reset(slowBudget)
	defer w.slow.Stop()
	select {
	case w.result <- e:
		return true
	case <-w.done:
		return false
	case <-w.slow.C:
		w.tooSlow()
		return false
	}
}

// unfollowLocked stops following a claim set that is empty and has no watchers. The hub continues to follow
// other sets, so that the next watch does not need to read them again under the lock.
func (h *Hub) unfollowLocked(c *claimants) {
	if len(c.watchers) == 0 && !c.waiting && h.claimed.of[c.Set] == c && c.Set.Len() == 0 {
		c.Set.Unfollow()
		delete(h.claimed.of, c.Set)
	}
}

func (w *Watcher) selectLocked() {
	key := selectionKey{attributes: w.request.Attributes}
	if s := w.request.Predicate.Label; s != nil {
		key.labels = s.String()
	}
	if s := w.request.Predicate.Field; s != nil {
		key.fields = s.String()
	}
	if w.selection = w.hub.selections[key]; w.selection == nil {
		w.selection = &selection{key: key}
		w.hub.selections[key] = w.selection
	}
	w.selection.watchers++
}

func (w *Watcher) unselectLocked() {
	if w.selection == nil {
		return
	}
	if w.selection.watchers--; w.selection.watchers == 0 {
		delete(w.hub.selections, w.selection.key)
	}
}

// batch is the number of events that a watcher which is behind takes at a time.
const batch = 64

// taken is an event for a watcher, with the claim set's selection at that time.
type taken struct {
	*event

	claimed claims.Selection
	// missed is the type with which the event is sent if the watcher had missed it.
	missed watch.EventType
}

// catchUp sends from the history until no events remain. It runs on the goroutine of a watcher that is behind.
func (w *Watcher) catchUp() {
	var events [batch]taken
	for {
		n, t, more := w.take(events[:])
		if !more {
			return
		}
		proceed := true
		for i := 0; i < n && proceed; i++ {
			proceed = events[i].event == nil || w.sendSelected(&events[i])
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

// sendSelected sends an event if the watcher selects it, and reports whether the watch continues.
func (w *Watcher) sendSelected(e *taken) bool {
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
			if m.latest[e.key] != e {
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

// sendUpdate sends the events of a claim update, and a bookmark, because added objects have older versions.
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
	bookmark, err := w.hub.Bookmark(t.version)
	if err != nil {
		w.fail(err)
		return false
	}
	return w.send(bookmark)
}

// claimedLocked returns the claim set's selection for the logical cluster of an event, as of that event.
func (w *Watcher) claimedLocked(e *event) claims.Selection {
	key := w.hub.claimKey(e.key)
	for _, t := range w.pendingUpdates {
		if t.missed == nil && len(t.prefixes) > 0 && t.prefixes[0].prefix == key {
			return t.prefixes[0].spans[0].selection
		}
	}
	return w.hub.claimOfLocked(w.claims, key)
}
