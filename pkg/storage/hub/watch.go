package hub

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	// buffered is how many events wait for a reader before the watcher counts
	// as behind. It takes a burst, and 32 bytes for each; of watchers of a part
	// of the keys, such as a logical cluster, there may be thousands.
	buffered, bufferedInPart = 128, 16
	// olderPeriod is how long an older watch lasts that catches up.
	olderPeriod = 4 * time.Second
)

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

// missedLocked has a watcher that joins after a version told of the changes of its claim
// set since it began, instead of the events since then in the logical clusters that have
// changed: what can be seen of these is not what could be. A bookmark says that it has
// been told.
func (w *Watcher) missedLocked(version uint64) error {
	h, c := w.hub, w.claims
	c.Set.Advance(h.version) // nobody may have wanted bookmarks, with which this is done, too
	changes, err := c.Set.Missed(w.begins, w.started)
	if err != nil || len(changes) == 0 {
		return err
	}
	m := &missed{cfg: &h.cfg, request: &w.request, of: map[string]int{}, until: h.history.next, latest: map[string]*event{}, had: map[string]had{}}
	t := &told{cfg: &h.cfg, number: w.cursor, version: version, missed: m}
	for i := range changes {
		key := c.prefix(changes[i].Cluster)
		if !strings.HasPrefix(key, w.request.Key) && !strings.HasPrefix(w.request.Key, key) {
			continue
		}
		n, known := m.of[key]
		if !known {
			n = len(t.prefixes)
			m.of[key] = n
			t.prefixes = append(t.prefixes, compared{prefix: key, now: h.claimOfLocked(c, key)})
		}
		t.prefixes[n].change(&h.history, &changes[i])
		if w.started && !known {
			t.prefixes[n].began = append(t.prefixes[n].began, changes[i].Before)
		}
		if w.started && changes[i].Revision <= w.begins { // it may have come before what was told, or after
			t.prefixes[n].began = append(t.prefixes[n].began, changes[i].After)
		}
	}
	if len(t.prefixes) == 0 {
		return nil
	}
	for n := w.cursor; n < m.until; n++ {
		e := h.history.at(n)
		if _, changed := m.of[h.claimKey(e.key)]; changed && inScope(w.request.Key, e.key) {
			m.events = append(m.events, e)
			if m.latest[e.key] = e; e.kind == watch.Deleted {
				m.skip(e.key)
			}
		}
	}
	t.objects = h.objects.snapshot()
	w.missed, w.telling = m, []*told{t, {cfg: &h.cfg, number: m.until, version: h.version}}
	return nil
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
			if e.Type != watch.Bookmark && w.holds(e) && !w.send(watch.Event{Type: e.Type, Object: w.hub.cfg.shown(e.Object)}) {
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
