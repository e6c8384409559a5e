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
	"k8s.io/klog/v2"
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

// endLocked ends a watch. The result is closed by the side that may still send: the hub, or the
// watcher's goroutine if it is behind.
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
	h.lastWatched = time.Now()
	w.unselectLocked()
	if w.joined {
		w.scopes().remove(w)
	}
	if w.claims != nil {
		h.unclaimLocked(w)
	}
	if w.release != nil {
		w.release()
	}
	if w.sharded {
		metrics.RecordShardedWatchStopped(h.cfg.Resource)
	}
}

// scopes returns the index of the watcher.
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

func (h *Hub) endAllLocked() {
	for w := range h.watchers {
		w.endLocked()
	}
}

func (w *Watcher) tooSlow() {
	r := w.hub.cfg.Resource
	metrics.TerminatedWatchersCounter.WithLabelValues(r.Group, r.Resource).Inc()
	klog.V(1).InfoS("Ending a watch whose client is too slow", "resource", r, "key", w.request.Key)
}

// sendPatiently waits for the reader until the watch ends, because initial events do not delay others.
func (w *Watcher) sendPatiently(e watch.Event) bool {
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

// send waits for the reader for a limited time. It reports whether the watch continues. Only the watcher's
// goroutine calls it.
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

// unclaimLocked removes a watcher that ends from its claim set.
func (h *Hub) unclaimLocked(w *Watcher) {
	delete(w.claims.watchers, w)
	h.unfollowLocked(w.claims)
}

// unfollowLocked stops following a claim set that is empty and has no watchers. The hub continues to follow
// other sets, so that the next watch does not need to read them again under the lock.
func (h *Hub) unfollowLocked(c *claimants) {
	if len(c.watchers) == 0 && !c.waiting && h.claimed.of[c.Set] == c && c.Set.Len() == 0 {
		c.Set.Unfollow()
		delete(h.claimed.of, c.Set)
	}
}

// selectLocked sets the selection of a watcher.
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

// unselectLocked removes the selection of a watcher.
func (w *Watcher) unselectLocked() {
	if w.selection == nil {
		return
	}
	if w.selection.watchers--; w.selection.watchers == 0 {
		delete(w.hub.selections, w.selection.key)
	}
}
