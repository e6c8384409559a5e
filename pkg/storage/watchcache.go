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

// progressInterval is the minimum interval between progress requests of one watch cache.
const progressInterval = 5 * time.Millisecond

// progress requests etcd's progress notifications for consistent reads, which wait until the watch cache has received
// all earlier writes, to any resource. Upstream requests progress only every 100 ms.
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

// cacheContext returns a context for the etcd stream of one watch cache: the etcd client opens a stream for each
// distinct metadata. etcd reports no progress of a stream while a watch on it starts at a future revision, as that of a
// new cache. On a shared stream, consistent reads of all other caches would fail until the next write.
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
			klog.FromContext(ctx).V(4).Info("Failed to request a progress notification from etcd", "err", err)
		}
		pause.Reset(progressInterval)
	}
}

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

type belowCache struct {
	storage.Interface
	// source names the etcd stream of the watch cache. The hub ends one watch before the next, see Tap.
	source   string
	progress *progress
	// cache is the watch cache, once it exists.
	cache atomic.Pointer[cacher.Cacher]
}

// IsWatchListSemanticsUnSupported makes the watch cache fill itself with a list. During a streamed list, the reflector
// collects objects by namespace and name. Objects with the same name in other logical clusters would then be missing.
func (*belowCache) IsWatchListSemanticsUnSupported() bool { return true }

// EnableResourceSizeEstimation does nothing, because the estimate needs memory for each object, and upstream's request
// cost estimator, which uses it, does not support logical clusters.
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
	return f.hub.Tap(opts.ResourceVersion, func() (watch.Interface, error) { return f.belowCache.Watch(ctx, key, opts) })
}

const (
	// dispatchTick is the minimum interval of the watch cache's bookmark timer; the maximum is a quarter more.
	dispatchTick = time.Second
	slowTick     = 10 * time.Minute
)

// slowTickClock is the clock of a watch cache, which has no watches. Its bookmark timer would wake the process each
// second.
type slowTickClock struct{ clock.RealClock }

func (c slowTickClock) NewTimer(d time.Duration) clock.Timer {
	if !isDispatchTick(d) {
		return c.RealClock.NewTimer(d)
	}
	return quietTimer{c.RealClock.NewTimer(slowTick)}
}

func isDispatchTick(d time.Duration) bool {
	return d >= dispatchTick && d <= dispatchTick+dispatchTick/4
}

type quietTimer struct{ clock.Timer }

func (t quietTimer) Reset(time.Duration) bool { return t.Timer.Reset(slowTick) }
