package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// progressInterval is the minimum interval between progress requests of one watch cache. One request
// serves all pending reads.
const progressInterval = 5 * time.Millisecond

// progress requests etcd's progress notifications for pending reads.
//
// A consistent read waits until the watch cache has received all earlier writes, to any resource.
// Upstream requests progress every 100 ms, which would delay a list after a write to another resource.
type progress struct {
	client  *clientv3.Client
	wanted  chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newProgress(client *clientv3.Client, source string) *progress {
	ctx, cancel := context.WithCancel(client.Ctx())
	p := &progress{client: client, wanted: make(chan struct{}, 1), cancel: cancel}
	p.running.Go(func() { p.run(clientv3.WithRequireLeader(cacheContext(ctx, source))) })
	return p
}

// cacheContext returns a context for the etcd stream of one watch cache. The etcd client opens a stream
// for each distinct metadata, and etcd reports progress per stream, not per watch. It reports none
// while a watch on the stream starts at a future revision, which the watch of a new cache does until
// the next write. On a shared stream, consistent reads of all other caches would fail until then.
func cacheContext(ctx context.Context, source string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("source", source))
}

func (p *progress) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-p.wanted:
		case <-ctx.Done():
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		if err := p.client.RequestProgress(ctx); err != nil {
			klog.V(4).InfoS("Failed to request a progress notification from etcd", "err", err)
		}
		pause.Reset(progressInterval)
	}
}

// want requests progress without blocking.
func (p *progress) want() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

func (p *progress) stop() {
	p.cancel()
	p.running.Wait()
}

// belowCache is the store below the watch cache.
type belowCache struct {
	storage.Interface
	// source names the etcd stream of the watch cache.
	source   string
	progress *progress
	// cache is the watch cache, once it exists.
	cache atomic.Pointer[cacher.Cacher]
}

// IsWatchListSemanticsUnSupported makes the watch cache fill itself with a list. During a streamed list
// the reflector collects objects by namespace and name, so objects of different logical clusters
// with the same name would replace each other, and all but one would be missing from the cache.
func (*belowCache) IsWatchListSemanticsUnSupported() bool { return true }

// EnableResourceSizeEstimation does nothing, because the estimate needs memory for each object and serves
// only upstream's request cost estimator, which does not support logical clusters.
func (*belowCache) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

func (s *belowCache) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(cacheContext(ctx, s.source), key, opts)
}

func (s *belowCache) RequestWatchProgress(ctx context.Context) error {
	return s.Interface.RequestWatchProgress(cacheContext(ctx, s.source))
}

// GetCurrentResourceVersion starts a consistent read. If the cache is behind, the read waits for progress.
func (s *belowCache) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	current, err := s.Interface.GetCurrentResourceVersion(ctx)
	if err != nil {
		return 0, err
	}
	if c := s.cache.Load(); c != nil && c.Ready() {
		if seen, err := c.LastSyncResourceVersion(); err != nil || seen < current {
			s.progress.want()
		}
	}
	return current, nil
}

// followed is belowCache with a hub that follows the watch cache's list and watch.
type followed struct {
	*belowCache

	hub *hub.Hub
	// opened is closed when the watch cache is configured and may be filled.
	opened <-chan struct{}
}

func (f followed) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	select {
	case <-f.opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := listTolerant(ctx, f.belowCache, key, opts, list); err != nil {
		return err
	}
	f.hub.Listed(opts.Predicate.Continue == "", list)
	return nil
}

func (f followed) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := f.belowCache.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return f.hub.Tap(w, opts.ResourceVersion), nil
}

const (
	// dispatchTick is the minimum interval at which a watch cache checks for watches that need a bookmark; the
	// maximum is a quarter more.
	dispatchTick = time.Second
	// quietTick is the interval while the cache has no watches.
	quietTick = 10 * time.Minute
)

// quietClock is the clock of one watch cache. The cache has few watches, because the hub serves them,
// but its bookmark timer would wake the process every second. Without watches, this timer is slow.
type quietClock struct {
	clock.RealClock

	mu       sync.Mutex
	watching int
	timer    clock.Timer // of the cache's dispatcher
}

// watch enables timely bookmarks until done is called.
func (c *quietClock) watch() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching++
	if c.watching == 1 && c.timer != nil {
		c.timer.Reset(dispatchTick)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watching--
	}
}

func (c *quietClock) NewTimer(d time.Duration) clock.Timer {
	if !isDispatchTick(d) {
		return c.RealClock.NewTimer(d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = c.RealClock.NewTimer(c.tickLocked(d))
	return dispatchTimer{c.timer, c}
}

// isDispatchTick reports whether d is the interval of the bookmark timer.
func isDispatchTick(d time.Duration) bool {
	return d >= dispatchTick && d <= dispatchTick+dispatchTick/4
}

func (c *quietClock) tickLocked(d time.Duration) time.Duration {
	if c.watching > 0 {
		return d
	}
	return quietTick
}

// dispatchTimer is the timer of the cache's dispatcher.
type dispatchTimer struct {
	clock.Timer
	clock *quietClock
}

func (t dispatchTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.Timer.Reset(t.clock.tickLocked(d))
}
