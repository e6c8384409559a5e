package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	// buffered is how many events wait for a reader before the watcher counts
	// as behind. It takes a burst, and 32 bytes for each; of watchers of a part
	// of the keys, such as a logical cluster, there may be thousands.
	buffered, bufferedInPart = 128, 16
	// batch is how many events a watcher that is behind takes at a time.
	batch = 64
	// slowBudget is how long a reader may take for one event before its watch
	// is ended, with a full buffer before it.
	slowBudget = 5 * time.Second
	// olderPeriod is how long an older watch lasts that catches up.
	olderPeriod = 4 * time.Second
)

// Request is what a watch is for.
type Request struct {
	// Key is the prefix of what is watched, with a slash at its end, or one key.
	Key       string
	Predicate storage.SelectionPredicate
	// Attributes, if not nil, says that the predicate is matched with its own
	// GetAttrs, not with the hub's. Requests whose GetAttrs are the same have the
	// same Attributes here, which must be comparable: of an event, they are
	// computed once for all of them. They are computed while events wait, so
	// GetAttrs must be quick and must not block.
	Attributes any
	// Claims restrict it to the objects of a set.
	Claims Claims
	// Version is where the watch starts, unless Start says so; 0 is now.
	Version uint64
	// Start sends initial events, if not nil, and returns their version. send
	// returns false where the watch is over; of an error the watch tells.
	Start func(ctx context.Context, send func(watch.Event) bool) (version uint64, err error)
	// Older watches the same key and predicate from a version that the hub has
	// no history of, but the watch cache may have. Bookmarks come two seconds
	// before the deadline of its context.
	Older func(ctx context.Context, version uint64) (watch.Interface, error)
}

// Watcher is a watch.
type Watcher struct {
	hub     *Hub
	request Request
	// sharded is false for a watch of the whole ring that does not say so.
	sharded bool
	ranges  ranges
	unnamed bool // the predicate has no label or field selector
	started bool // the request had a Start
	// begins is the version after which it is told of events, or 0 for now.
	begins uint64

	result       chan watch.Event
	done         chan struct{}
	release      func() bool // of the context
	deadline     time.Time
	nextBookmark time.Time
	slow         *time.Timer // of the watcher's goroutine, if the reader was slow

	// Under the hub's lock:

	stopped bool
	// behind is true while a goroutine of the watcher sends from the history;
	// only then does anybody but the hub send.
	behind bool
	// cursor is the number of the event that the goroutine is at.
	cursor uint64
	// joined is whether the watcher is in the index; from is since which event.
	joined bool
	from   uint64
	// selection is nil for a watcher without selectors.
	selection *selection
	at        int // where in the index, unless sharded
	// claims is nil for a watcher that is not restricted.
	claims *claimants
	// telling are changes of the claim set that are to be told, in order.
	telling []*told
	// missed is what changed before the watcher joined, until it has been told.
	missed *missed
}

// Watch starts a watch, sharded or not.
func (h *Hub) Watch(ctx context.Context, request Request) (watch.Interface, error) {
	r, whole, err := rangesOf(request.Predicate.ShardSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid shardSelector: %v", err))
	}
	if whole {
		r.intervals = []hashrange.Interval{hashrange.Whole}
	}
	size := buffered
	if request.Key != h.cfg.Root {
		size = bufferedInPart
	}
	w := &Watcher{
		hub: h, request: request, sharded: !whole, ranges: r, behind: true,
		result: make(chan watch.Event, size),
		done:   make(chan struct{}),
	}
	pred := request.Predicate
	pred.ShardSelector = nil
	w.unnamed = pred.Empty()
	w.deadline, _ = ctx.Deadline()
	w.nextBookmark = w.bookmarkAfter(time.Now())

	w.started = request.Start != nil

	if err := h.lockFollowing(ctx, request.Claims); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	if h.closed {
		return nil, apierrors.NewServiceUnavailable("the storage is closed") //nolint:forbidigo // this process ends
	}
	if request.Claims.Set != nil {
		if err := h.claimLocked(w); err != nil {
			return nil, err
		}
	}
	h.startLocked(func() { w.run(ctx) })
	h.watchers[w] = struct{}{}
	if !w.unnamed {
		w.selectLocked()
	}
	w.release = context.AfterFunc(ctx, w.Stop)
	if w.sharded {
		metrics.RecordShardedWatchStarted(h.cfg.Resource)
	}
	h.tickForLocked(w)
	return w, nil
}

// ResultChan implements watch.Interface.
func (w *Watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *Watcher) Stop() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked()
}

// endLocked ends a watch. Whoever may still send closes the result.
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

// scopes returns where the watcher is found.
func (w *Watcher) scopes() scopes {
	if w.claims != nil {
		return w.claims.scopes
	}
	return w.hub.scopes
}

// endJoinedLocked ends the watches that follow the events. The others have not
// missed any yet.
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

// run sends what comes before the events that the hub has in its history.
func (w *Watcher) run(ctx context.Context) {
	version, err := w.request.Version, error(nil)
	if w.request.Start != nil {
		version, err = w.request.Start(ctx, w.sendPatiently)
	}
	if err != nil {
		w.fail(err)
	}
	w.begins = version
	if err != nil || !w.join(ctx, version) {
		w.Stop()
		close(w.result)
		return
	}
	utilflowcontrol.WatchInitialized(ctx)
	w.catchUp()
}

// join puts the watcher into the index, with the events after a version to come.
// It waits for a hub that is behind the version, as after events from the watch
// cache: the hub would send them again.
func (w *Watcher) join(ctx context.Context, version uint64) bool {
	h := w.hub
	for {
		if err := h.WaitFresh(ctx, version); err != nil {
			w.fail(err)
			return false
		}
		h.mu.Lock()
		stopped, fresh := w.stopped, h.synced && version <= h.version
		known := version == 0 || version >= h.history.floor
		var err error
		if !stopped && fresh {
			err = w.joinLocked(version, known)
		}
		h.mu.Unlock()
		switch {
		case stopped:
			return false
		case err != nil:
			w.fail(err)
			return false
		case !fresh: // the hub has lost track since
			continue
		case known:
			return true
		}
		var ok bool
		if version, ok = w.sendOlder(ctx, version); !ok {
			return false
		}
	}
}

// joinLocked puts the watcher into the index, if the hub knows all events since a version.
// What its claim set showed before cannot be told where it does not.
func (w *Watcher) joinLocked(version uint64, known bool) error {
	h := w.hub
	if !known {
		if w.claims == nil {
			return nil
		}
		changes, err := w.claims.Set.Missed(w.begins, w.started)
		if err == nil && len(changes) > 0 {
			err = claims.ErrCompacted
		}
		return expiredClaims(err)
	}
	if version == 0 {
		version = h.version
	}
	w.cursor, w.from = h.history.after(version), h.history.next
	if w.claims != nil && w.begins != 0 {
		if err := w.missedLocked(version); err != nil {
			return expiredClaims(err)
		}
	}
	w.joined = true
	w.request.Start, w.request.Older = nil, nil // with all that they refer to
	w.scopes().add(w)
	return nil
}

func expiredClaims(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewResourceExpired(err.Error())
}

// sendOlder sends events that the hub has forgotten, and returns up to where it
// has sent all. The hub goes on where a later event begins: those of one version,
// as of objects that expire together, stay together.
func (w *Watcher) sendOlder(ctx context.Context, version uint64) (uint64, bool) {
	ctx, cancel := context.WithTimeout(ctx, olderPeriod)
	defer cancel()
	older, err := w.request.Older(ctx, version)
	if err != nil {
		w.fail(err)
		return 0, false
	}
	defer older.Stop()
	for {
		select {
		case e, ok := <-older.ResultChan():
			if !ok {
				return version, true
			}
			if e.Type == watch.Error {
				w.send(e)
				return 0, false
			}
			reached, err := w.hub.cfg.Versioner.ObjectResourceVersion(e.Object)
			if err != nil {
				w.fail(err)
				return 0, false
			}
			if e.Type == watch.Bookmark {
				version = max(version, reached)
			}
			if (e.Type == watch.Bookmark || reached > version) && w.hub.remembers(version) {
				return version, true
			}
			if e.Type != watch.Bookmark && w.holds(e) && !w.send(watch.Event{Type: e.Type, Object: w.hub.shown(e.Object)}) {
				return 0, false
			}
			version = max(version, reached)
		case <-w.done:
			return 0, false
		}
	}
}

// remembers reports whether the history has all events after a version.
func (h *Hub) remembers(version uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return version >= h.history.floor
}

// holds reports whether the object of an event is in the watcher's ranges.
func (w *Watcher) holds(e watch.Event) bool {
	if !w.sharded {
		return true
	}
	hashes, err := hashesOf(e.Object)
	if err == nil && w.ranges.match(hashes) {
		return true
	}
	w.hub.countFiltered(1)
	return false
}

// inScope reports whether a key is the one that is watched, or below its prefix.
func inScope(watched, key string) bool {
	return strings.HasPrefix(key, watched) && (len(key) == len(watched) || watched[len(watched)-1] == '/')
}

func (w *Watcher) tooSlow() {
	r := w.hub.cfg.Resource
	metrics.TerminatedWatchersCounter.WithLabelValues(r.Group, r.Resource).Inc()
	klog.V(1).InfoS("Ending a watch whose client is too slow", "resource", r, "key", w.request.Key)
}

// sendPatiently waits for the reader as long as the watch lasts, since initial
// events keep nothing from others.
func (w *Watcher) sendPatiently(e watch.Event) bool {
	select {
	case w.result <- e:
		return true
	case <-w.done:
		return false
	}
}

// fail sends an error, which is the last that the watch sends.
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
