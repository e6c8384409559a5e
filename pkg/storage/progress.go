package storage

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// progressInterval is the least time between two requests for progress of one
// watch cache. One request serves all reads that wait.
const progressInterval = 5 * time.Millisecond

// progress requests etcd's progress notifications for reads that wait for one.
//
// A consistent read waits until its watch cache knows that it has seen all
// that was written before, to any resource. Upstream asks etcd at most every
// 100 ms, so that a list that follows a write elsewhere takes just that long.
// Asked at once, it takes a millisecond.
type progress struct {
	client *clientv3.Client
	wanted chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
}

func newProgress(client *clientv3.Client, source string) *progress {
	ctx, cancel := context.WithCancel(client.Ctx())
	p := &progress{client: client, wanted: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(clientv3.WithRequireLeader(cacheContext(ctx, source)))
	}()
	return p
}

// cacheContext returns a context for the etcd stream of one watch cache. The
// etcd client has a stream for each kind of metadata, and etcd tells the
// progress of a stream, not of a watch. So each watch cache needs a stream of
// its own: etcd tells nothing while any watch on the stream begins in the future,
// as that of a new cache does until the next write, and consistent reads of all
// other caches would fail until then.
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
			klog.V(4).InfoS("Cannot request a progress notification from etcd", "err", err)
		}
		pause.Reset(progressInterval)
	}
}

// want has progress requested soon.
func (p *progress) want() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

func (p *progress) stop() {
	p.cancel()
	<-p.done
}

// belowCache is the store as the watch cache sees it.
type belowCache struct {
	storage.Interface
	// source names the etcd stream of the watch cache.
	source   string
	progress *progress
	// cache is the watch cache, once it exists.
	cache atomic.Pointer[cacher.Cacher]
}

// IsWatchListSemanticsUnSupported makes the watch cache fill itself with a
// list. A streamed list collects objects by namespace and name in the
// reflector, where same-named objects of different logical clusters replace
// one another: after a restart, all but one would be gone from the cache.
func (*belowCache) IsWatchListSemanticsUnSupported() bool { return true }

// EnableResourceSizeEstimation does nothing: the estimate takes memory for
// each object, and only feeds upstream's request cost estimator, which does
// not know logical clusters.
func (*belowCache) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// Watch watches on the stream of the watch cache.
func (s *belowCache) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(cacheContext(ctx, s.source), key, opts)
}

// RequestWatchProgress requests progress on the stream of the watch cache.
func (s *belowCache) RequestWatchProgress(ctx context.Context) error {
	return s.Interface.RequestWatchProgress(cacheContext(ctx, s.source))
}

// GetCurrentResourceVersion is what a consistent read of the watch cache
// starts with. Should the cache be behind, the read waits for progress.
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

// followed is the store as the watch cache sees it, with the hub that follows
// what the watch cache reads.
type followed struct {
	*belowCache

	hub *hub.Hub
	// opened is closed when the watch cache is as it should be, and may be filled.
	opened <-chan struct{}
}

// GetList lists what fills the watch cache.
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

// Watch watches what keeps the watch cache up to date.
func (f followed) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := f.belowCache.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return f.hub.Tap(w, opts.ResourceVersion), nil
}
