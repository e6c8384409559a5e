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

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	// buffered is the number of events, of 32 bytes, that a watcher buffers before it is behind. There may be
	// thousands of watchers of a part of the keys, e.g. of a logical cluster, so these have smaller buffers.
	buffered, bufferedInPart = 128, 16
	// olderPeriod is the maximum duration of a watch by Request.Older.
	olderPeriod = 4 * time.Second
)

// Watch starts a watch.
func (h *Hub) Watch(ctx context.Context, request Request) (watch.Interface, error) {
	r, all, err := rangesOf(request.Predicate.ShardSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid shardSelector: %v", err))
	}
	size := buffered
	if request.Key != h.cfg.Root {
		size = bufferedInPart
	}
	w := &Watcher{
		hub: h, request: request, sharded: !all, ranges: r, behind: true,
		result:  make(chan watch.Event, size),
		done:    make(chan struct{}),
		started: request.Start != nil,
	}
	pred := request.Predicate
	pred.ShardSelector = nil
	w.unnamed = pred.Empty()
	w.deadline, _ = ctx.Deadline()
	w.nextBookmark = w.bookmarkAfter(time.Now())
	if err := h.lockFollowing(ctx, request.Claims); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	if h.closed {
		return nil, apierrors.NewServiceUnavailable("the storage is closed") //nolint:forbidigo // the process is shutting down
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

// run sends the events that precede those in the history.
func (w *Watcher) run(ctx context.Context) {
	version, err := w.request.Version, error(nil)
	if w.request.Start != nil {
		version, err = w.request.Start(ctx, w.sendInitial)
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

// join adds the watcher to the index and schedules the events after a version. If the hub is behind the version, e.g.
// after events from etcd, join waits, because the hub would send them again.
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
		case !fresh: // the hub has lost track of the watch cache
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

// joinLocked adds the watcher to the index if the hub has all events after a version. Otherwise missed changes of
// the claim set cannot be computed, so that the watch expires.
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
	w.request.Start, w.request.Older = nil, nil // release their references
	w.scopes().add(w)
	return nil
}

// missedLocked prepares the update for a joining watcher if its claim set has changed since it began. It replaces the
// events of the affected logical clusters, and a bookmark follows it.
func (w *Watcher) missedLocked(version uint64) error {
	h, c := w.hub, w.claims
	c.Set.Advance(h.version) // sendBookmarks may not have run
	changes, err := c.Set.Missed(w.begins, w.started)
	if err != nil || len(changes) == 0 {
		return err
	}
	m := &missed{cfg: &h.cfg, request: &w.request, of: map[string]int{}, until: h.history.next, latest: map[string]*event{}, had: map[string]had{}}
	t := &claimUpdate{cfg: &h.cfg, number: w.cursor, version: version, missed: m}
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
		if w.started && changes[i].Revision <= w.begins { // it is unknown whether the initial events included it
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
	w.missed, w.pendingUpdates = m, []*claimUpdate{t, {cfg: &h.cfg, number: m.until, version: h.version}}
	return nil
}

// sendOlder sends events that are no longer in the history, and returns the version up to which it has sent all. The hub
// takes over at an event with a later version, because events with the same version must not be separated.
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
			if e.Type != watch.Bookmark && w.inRanges(e) && !w.send(watch.Event{Type: e.Type, Object: w.hub.cfg.Shown(e.Object)}) {
				return 0, false
			}
			version = max(version, reached)
		case <-w.done:
			return 0, false
		}
	}
}

func (h *Hub) remembers(version uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return version >= h.history.floor
}

func (w *Watcher) inRanges(e watch.Event) bool {
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
