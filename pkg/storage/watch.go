package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

func (s *tenantStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	version, err := s.Versioner().ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, invalidVersion(err)
	}
	c, err := s.collect(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	s.waitReady(ctx)
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		c.opts.SendInitialEvents = nil
	}
	if !s.cache.Ready() {
		return nil, s.hub.Filling()
	}
	if err := s.hub.WaitFresh(ctx, 0); err != nil {
		return nil, err
	}
	if wantsInitialEvents(c.opts) {
		if err := s.checkReadable(ctx, c); err != nil {
			return nil, err
		}
	}
	request := hub.Request{Key: c.key, Predicate: c.opts.Predicate, Claims: c.claims, Version: version}
	if (c.selected != selected{}) {
		request.Attributes = c.selected
	}
	switch {
	case wantsInitialEvents(c.opts):
		request.Start = s.initialEvents(c)
	case c.opts.ResourceVersion == "":
		// The watch starts at the current version.
		if request.Version, err = s.inner.GetCurrentResourceVersion(ctx); err != nil {
			return nil, err
		}
	}
	request.Older = func(ctx context.Context, version uint64) (watch.Interface, error) {
		opts := c.opts
		opts.SendInitialEvents, opts.ResourceVersionMatch = nil, ""
		opts.ResourceVersion = strconv.FormatUint(version, 10)
		opts.Predicate.ShardSelector = nil
		opts.Predicate.AllowWatchBookmarks = true
		if c.claims.Set != nil {
			s.restrict(&opts.Predicate, c.claims, c.claims.Set.Latest())
		}
		if !c.beyondCache() {
			if err := s.hub.Expired(version); err != nil {
				return nil, err
			}
		}
		return s.watchOlder(ctx, c.key, opts)
	}
	return s.hub.Watch(ctx, request)
}

// watchOlder watches etcd, on a separate etcd stream, from a version for which the hub has no history. It
// sends a bookmark as soon as it has caught up. It ends with ctx, which must end before the hub is closed.
func (s *tenantStorage) watchOlder(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx = cacheContext(ctx, fmt.Sprintf("older watch %d of %s", olderWatches.Add(1), s.keys.root))
	w, err := s.raw.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	s.progressRequests.Go(func() { s.requestProgress(ctx) })
	return w, nil
}

func (s *tenantStorage) requestProgress(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.raw.RequestWatchProgress(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(4).Info("Failed to request a progress notification from etcd", "err", err)
		}
	}, olderProgress)
}

// olderWatches counts watches of etcd, to name their streams.
var olderWatches atomic.Int64

// olderProgress is the interval of progress requests while a watch catches up.
const olderProgress = 100 * time.Millisecond

var errStopped = errors.New("the watch was stopped")

// initialEvents returns a function that sends the existing objects, and the bookmark after them.
func (s *tenantStorage) initialEvents(c collection) func(context.Context, func(watch.Event) bool) (uint64, error) {
	return func(ctx context.Context, send func(watch.Event) bool) (uint64, error) {
		state, err := s.hub.State(ctx, c.key, c.claims, c.opts)
		if err != nil {
			return 0, err
		}
		stopped, sent := false, 0
		err = state.Each(func(obj runtime.Object) bool {
			stopped = !send(watch.Event{Type: watch.Added, Object: obj})
			sent++
			return !stopped
		})
		if sent > 0 {
			metrics.InitCounter.WithLabelValues(s.named.Group, s.named.Resource).Add(float64(sent))
		}
		if err == nil && !stopped && c.opts.SendInitialEvents != nil && c.opts.Predicate.AllowWatchBookmarks {
			var bookmark runtime.Object
			if bookmark, err = s.endOfInitialEvents(state.Version, c); err == nil {
				stopped = !send(watch.Event{Type: watch.Bookmark, Object: bookmark})
			}
		}
		if stopped {
			return 0, errStopped
		}
		return state.Version, err
	}
}

func (s *tenantStorage) endOfInitialEvents(version uint64, c collection) (runtime.Object, error) {
	bookmark, err := s.hub.Bookmark(version)
	if err != nil {
		return nil, err
	}
	if err := storage.AnnotateInitialEventsEndBookmark(bookmark.Object); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	if isSharded(&c.opts.Predicate) {
		object, err := meta.Accessor(bookmark.Object)
		if err != nil {
			return nil, fmt.Errorf("bookmark: %w", err)
		}
		annotations := object.GetAnnotations() // not nil
		annotations[hashrange.InfoAnnotation] = c.opts.Predicate.ShardSelector.String()
		object.SetAnnotations(annotations)
	}
	return bookmark.Object, nil
}

// wantsInitialEvents reports whether a watch starts with the existing objects.
func wantsInitialEvents(opts storage.ListOptions) bool {
	if opts.SendInitialEvents == nil {
		return opts.ResourceVersion == "" || opts.ResourceVersion == "0"
	}
	return *opts.SendInitialEvents
}
