// Package hub follows the reads of a watch cache from etcd. It serves watches and paginated lists, whose
// cost in the watch cache grows with the number of all watches or objects.
//
//	etcd3 ──► Hub ──► watch cache
//	           │
//	           ├─ tree     objects in key order, copy-on-write: for pages
//	           ├─ history  the latest events: for watches that resume
//	           └─ index    watchers by key prefix and hash range
//
// docs/development/listwatch.md describes it in more detail.
package hub

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	// freshTimeout is how long a request waits for a resource version, as in the watch cache.
	freshTimeout = 3 * time.Second
	// progressInterval is the interval of progress requests while a request waits.
	progressInterval = 100 * time.Millisecond
	// retryAfterSeconds is the suggested delay for clients after a timeout.
	retryAfterSeconds = 1
)

// Hub follows the reads of one watch cache from etcd.
type Hub struct {
	cfg Config

	// current is the object for which the watch cache will request the key next.
	current atomic.Pointer[item]

	mu sync.Mutex
	// synced is false while the watch cache is being filled, e.g. because the hub has lost track of it.
	synced bool
	// version is the resource version up to which all events were received.
	version uint64
	// lastEvent is the version of the last event, or of the list before it. The objects have not changed since then.
	lastEvent uint64
	objects   *tree
	kept      keptSnapshots
	history   history
	// written is the total size of the objects of all events.
	written int64
	// filling are the objects of the list that fills the watch cache.
	filling *filling
	// changed is closed when version grows; nil if no request waits.
	changed chan struct{}

	watchers map[*Watcher]struct{}
	expiring *time.Timer // for expired events
	// older is added to the times of the watch cache's events, see aged.
	older   time.Duration
	scopes  scopes
	claimed claimed
	found   []*Watcher // reused by each event
	// selections are the selections of the watchers.
	selections map[selectionKey]*selection
	nextTick   time.Time // time of the next bookmark, or zero
	sooner     chan struct{}

	closed  bool
	done    chan struct{}
	await   func() // waits until the latest tap has ended; nil before the first
	running sync.WaitGroup
}

// filling collects the objects for which the watch cache requests keys between its list and its watch.
type filling struct {
	items []item
	want  int
}

// Watcher is a watch in the hub. It implements watch.Interface.
type Watcher struct {
	hub     *Hub
	request Request
	// sharded is false if the watch includes all objects and has no shard selector.
	sharded bool
	ranges  ranges
	unnamed bool // the predicate has no label or field selector
	started bool // the request had a Start
	// begins is the version after which it receives events, or 0 for now.
	begins uint64

	result       chan watch.Event
	done         chan struct{}
	release      func() bool // of the context
	deadline     time.Time
	nextBookmark time.Time
	slow         *time.Timer // of the watcher's goroutine, if the reader was slow

	// The following fields are guarded by the hub's lock.

	stopped bool
	// behind is true while the watcher's goroutine sends from the history. Otherwise only the hub sends.
	behind bool
	// cursor is the number of the goroutine's next event.
	cursor uint64
	// joined reports whether the watcher is in the index; from is the number of its first event there.
	joined bool
	from   uint64
	// selection is nil for a watcher without selectors.
	selection *selection
	at        int // position in the index, unless sharded
	// claims is nil for a watcher that is not restricted.
	claims *claimants
	// pendingUpdates are pending updates of the claim set, in order.
	pendingUpdates []*claimUpdate
	// missed are the changes before the watcher joined, until they have been sent.
	missed *missed
}

// claimed are the claim sets with watchers.
type claimed struct {
	of map[*claims.Set]*claimants
	// in are the claim sets that include a logical cluster, by its key prefix.
	in map[string][]claimant
}

// claimants are the watchers of a claim set.
type claimants struct {
	Claims

	scopes scopes
	// watchers are all watchers, including those that are not in scopes yet.
	watchers map[*Watcher]struct{}
	// waiting is true while a goroutine waits for the version of a change.
	waiting bool
}

// claimant is a claim set that includes a logical cluster, with its selection.
type claimant struct {
	*claimants

	selection claims.Selection
}

// selection is shared by watchers with equal selectors, which match an event once.
type selection struct {
	key      selectionKey
	watchers int
	// event is the number of the last matched event plus one.
	event   uint64
	is, was bool
}

type selectionKey struct {
	labels, fields string
	attributes     any
}

// NewHub returns a hub that is not synced yet.
func NewHub(cfg Config) *Hub {
	return &Hub{
		cfg:        cfg,
		history:    history{max: cmp.Or(cfg.MaxHistory, defaultMaxHistory)},
		objects:    newTree(nil),
		kept:       keptSnapshots{},
		watchers:   map[*Watcher]struct{}{},
		scopes:     scopes{},
		claimed:    claimed{of: map[*claims.Set]*claimants{}, in: map[string][]claimant{}},
		selections: map[selectionKey]*selection{},
		sooner:     make(chan struct{}, 1),
		done:       make(chan struct{}),
	}
}

// startLocked runs f in a goroutine that Close waits for. It returns false if the hub is closed.
func (h *Hub) startLocked(f func()) bool {
	if h.closed {
		return false
	}
	h.running.Go(f)
	return true
}

func (h *Hub) advancedLocked() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// changesLocked returns a channel that is closed when the version grows.
func (h *Hub) changesLocked() chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// WaitFresh waits until the hub is synced and has received all events up to a version, or returns upstream's errors.
func (h *Hub) WaitFresh(ctx context.Context, version uint64) error {
	var timeout, again *time.Timer
	for {
		h.mu.Lock()
		if h.synced && version <= h.version {
			h.mu.Unlock()
			return nil
		}
		at, synced, changed := h.version, h.synced, h.changesLocked()
		h.mu.Unlock()

		if timeout == nil {
			timeout, again = time.NewTimer(freshTimeout), time.NewTimer(progressInterval)
			defer timeout.Stop()
			defer again.Stop()
			h.cfg.WantProgress()
		}
		select {
		case <-changed:
		case <-again.C:
			h.cfg.WantProgress()
			again.Reset(progressInterval)
		case <-timeout.C:
			if !synced {
				return h.Filling()
			}
			return storage.NewTooLargeResourceVersionError(version, at, retryAfterSeconds)
		case <-h.done:
			return context.Canceled
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// LastChange waits for a version and returns the version of the latest event.
func (h *Hub) LastChange(ctx context.Context, version uint64) (uint64, error) {
	if err := h.WaitFresh(ctx, version); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastEvent, nil
}

// GetAt returns the object of a key at the given version or later, or nil if there is none. It returns false if the
// hub does not reach the version in time. The object must not be modified.
func (h *Hub) GetAt(ctx context.Context, key string, version uint64) (runtime.Object, bool) {
	h.mu.Lock()
	synced := h.synced
	h.mu.Unlock()
	if !synced || h.WaitFresh(ctx, version) != nil {
		return nil, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.objects.get(key), h.synced && version <= h.version
}

// Filling returns the error while the watch cache is being filled, which makes clients retry.
func (h *Hub) Filling() error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("the watch cache of %s is being filled: try again", h.cfg.Resource), retryAfterSeconds)
}

// Bookmark returns a bookmark event.
func (h *Hub) Bookmark(version uint64) (watch.Event, error) {
	bookmark := h.cfg.NewFunc()
	if err := h.cfg.Versioner.UpdateObject(bookmark, version); err != nil {
		return watch.Event{}, fmt.Errorf("cannot create a bookmark of %s: %w", h.cfg.Resource, err)
	}
	return watch.Event{Type: watch.Bookmark, Object: bookmark}, nil
}

// claimKey returns the part of a key up to and including the logical cluster, which follows the root or an identity.
func (h *Hub) claimKey(key string) string {
	at := len(h.cfg.Root)
	for {
		n := strings.IndexByte(key[at:], '/')
		if n < 0 {
			return ""
		}
		identity := key[at] == identityPrefix
		if at += n + 1; !identity {
			return key[:at]
		}
	}
}

func (h *Hub) claimOfLocked(c *claimants, key string) claims.Selection {
	for _, in := range h.claimed.in[key] {
		if in.claimants == c {
			return in.selection
		}
	}
	return claims.Selection{}
}

func (h *Hub) countFiltered(n int) {
	if n > 0 {
		metrics.WatchFilteredEventsTotal.WithLabelValues(h.cfg.Resource.Group, h.cfg.Resource.Resource).Add(float64(n))
	}
}
