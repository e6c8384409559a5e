package storage

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
)

// errStopped is returned where nobody watches any more.
var errStopped = errors.New("the watch was stopped")

// initialEvents returns what sends the objects that a watch starts with, and the
// bookmark that ends them.
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
			if bookmark, err = s.newBookmark(state.Version, c); err == nil {
				stopped = !send(watch.Event{Type: watch.Bookmark, Object: bookmark})
			}
		}
		if stopped {
			return 0, errStopped
		}
		return state.Version, err
	}
}

// newBookmark returns the object that marks the end of initial events.
func (s *tenantStorage) newBookmark(version uint64, c collection) (runtime.Object, error) {
	obj := s.newFunc()
	if err := s.Versioner().UpdateObject(obj, version); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	if !isSharded(&c.opts.Predicate) {
		return obj, nil
	}
	return obj, annotateShardInfo(obj, c.opts.Predicate.ShardSelector.String())
}
