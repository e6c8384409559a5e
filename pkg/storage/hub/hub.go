package hub

import (
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
	// freshTimeout is how long a request waits for the hub to reach a resource
	// version, as in the watch cache.
	freshTimeout = 3 * time.Second
	// askAgain is how often a request that waits asks etcd for progress.
	askAgain = 100 * time.Millisecond
	// retryAfterSeconds is what a client whose request waited in vain is told.
	retryAfterSeconds = 1
)

// Hub follows what one watch cache reads from etcd.
type Hub struct {
	cfg Config

	// current is the object that the watch cache is about to ask the key of.
	current atomic.Pointer[item]

	mu sync.Mutex
	// synced is false until the watch cache is filled, and until it is filled
	// again where the hub has lost track of it.
	synced bool
	// version is the resource version up to which everything was seen.
	version uint64
	// lastEvent is the version of the last event, or of the list before it: the
	// objects are the same at all versions from here to version.
	lastEvent uint64
	objects   *tree
	kept      keptSnapshots
	history   history
	// written is how large the objects of all events were that came.
	written int64
	// filling are the objects with which the watch cache is being filled.
	filling *filling
	// changed is closed when version grows, if anybody waits for it.
	changed chan struct{}

	watchers map[*Watcher]struct{}
	// lastWatched is when the last watch ended, and expiring forgets what is too old.
	lastWatched time.Time
	expiring    *time.Timer
	// older is by how much events of the watch cache seem older than those before, see aged.
	older   time.Duration
	scopes  scopes
	claimed claimed
	found   []*Watcher // reused by each event
	// selections are those of the watchers.
	selections map[selectionKey]*selection
	nextTick   time.Time // when bookmarks are looked after, if anybody wants some
	sooner     chan struct{}

	closed  bool
	done    chan struct{}
	tapped  chan struct{} // closed when the latest tap has ended
	running sync.WaitGroup
}

// filling collects the objects of a list, which is what the watch cache asks
// the keys of between its list and its watch.
type filling struct {
	items []item
	want  int
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

// claimed is what the hub follows the claim sets by that are watched.
type claimed struct {
	of map[*claims.Set]*claimants
	// in are those that hold a logical cluster, by the prefix of its keys.
	in map[string][]claimant
}

// claimants are the watchers of a claim set.
type claimants struct {
	Claims

	scopes scopes
	// watchers are all, those included that are not in the scopes yet.
	watchers map[*Watcher]struct{}
	// waiting is true while a goroutine waits for the version of a change.
	waiting bool
}

// claimant is a claim set that holds a logical cluster.
type claimant struct {
	*claimants

	selection claims.Selection
}

// selection is what watchers with equal selectors share: an event is matched with
// them once, however many there are.
type selection struct {
	key      selectionKey
	watchers int
	// event is the number of the event that was matched last, plus one.
	event   uint64
	is, was bool
}

type selectionKey struct {
	labels, fields string
	attributes     any
}

// New returns a hub that knows nothing yet.
func New(cfg Config) *Hub {
	tapped := make(chan struct{})
	close(tapped)
	return &Hub{
		cfg:        cfg,
		objects:    newTree(nil),
		watchers:   map[*Watcher]struct{}{},
		scopes:     scopes{},
		claimed:    claimed{of: map[*claims.Set]*claimants{}, in: map[string][]claimant{}},
		selections: map[selectionKey]*selection{},
		sooner:     make(chan struct{}, 1),
		done:       make(chan struct{}),
		tapped:     tapped,
	}
}

// start runs f as something that Close waits for, unless the hub is closed.
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

// changesLocked returns what is closed when the version grows.
func (h *Hub) changesLocked() chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// WaitFresh waits until the hub follows the watch cache and has seen everything up
// to a version. It returns the error that clients get for a version in the future,
// or Filling.
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
			timeout, again = time.NewTimer(freshTimeout), time.NewTimer(askAgain)
			defer timeout.Stop()
			defer again.Stop()
			h.cfg.WantProgress()
		}
		select {
		case <-changed:
		case <-again.C:
			h.cfg.WantProgress()
			again.Reset(askAgain)
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

// LastChange returns the version of the latest event, after it has seen everything up to a version.
func (h *Hub) LastChange(ctx context.Context, version uint64) (uint64, error) {
	if err := h.WaitFresh(ctx, version); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastEvent, nil
}

// GetAt returns the object of a key as of a version or later, nil if there is none, and false if
// the hub is not that far and does not get there soon. The object is shared: do not change it.
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

// Filling is what clients are told while the watch cache is being filled: to try
// again.
func (h *Hub) Filling() error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("the watch cache of %s is being filled: try again", h.cfg.Resource), retryAfterSeconds)
}

// Version returns the resource version up to which the hub has seen everything.
func (h *Hub) Version() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// bookmark returns an object that says nothing but a version.
func (h *Hub) bookmark(version uint64) (watch.Event, error) {
	bookmark := h.cfg.NewFunc()
	if err := h.cfg.Versioner.UpdateObject(bookmark, version); err != nil {
		return watch.Event{}, fmt.Errorf("cannot make a bookmark of %s: %w", h.cfg.Resource, err)
	}
	return watch.Event{Type: watch.Bookmark, Object: bookmark}, nil
}

// claimKey returns the part of a key that says the logical cluster: it follows the root,
// or an identity, which no name of a logical cluster looks like.
func (h *Hub) claimKey(key string) string {
	at := len(h.cfg.Root)
	for {
		n := strings.IndexByte(key[at:], '/')
		if n < 0 {
			return ""
		}
		identity := key[at] == identityMark
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
