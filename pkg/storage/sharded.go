package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// ShardInfoAnnotation is on the bookmark that ends the initial events of a
// sharded watch, and carries the selector that was applied.
const ShardInfoAnnotation = "shardplane.io/shard-info"

// isSharded says whether a request is for a part of the objects.
func isSharded(pred *storage.SelectionPredicate) bool {
	return pred.ShardSelector != nil && !pred.ShardSelector.Empty() &&
		utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch)
}

// strict has a list fail where an object cannot be matched, which etcd3 drops
// without a word and the watch cache reports without a name.
type strict struct {
	err error
}

func (s *strict) fail(obj runtime.Object, err error) error {
	name := "an object"
	if object, metaErr := meta.Accessor(obj); metaErr == nil {
		name = fmt.Sprintf("%s/%s", object.GetNamespace(), object.GetName())
	}
	if err = fmt.Errorf("cannot match %s: %w", name, err); s.err == nil {
		s.err = err
	}
	return err
}

// strictSelector is a shard selector of which errors are noticed.
type strictSelector struct {
	sharding.Selector

	strict *strict
}

// Matches implements sharding.Selector.
func (s strictSelector) Matches(obj runtime.Object) (bool, error) {
	matches, err := s.Selector.Matches(obj)
	if err != nil {
		err = s.strict.fail(obj, err)
	}
	return matches, err
}

// makeStrict has errors of matching noticed.
func makeStrict(pred *storage.SelectionPredicate) *strict {
	s := &strict{}
	if isSharded(pred) {
		pred.ShardSelector = strictSelector{pred.ShardSelector, s}
	}
	if getAttrs := pred.GetAttrs; getAttrs != nil {
		pred.GetAttrs = func(obj runtime.Object) (l labels.Set, f fields.Set, err error) {
			if l, f, err = getAttrs(obj); err != nil {
				err = s.fail(obj, err)
			}
			return l, f, err
		}
	}
	return s
}

// shardedWatch is a sharded watch that the hub does not serve: it filters,
// annotates the end of the initial events, and is counted until it is stopped.
type shardedWatch struct {
	inner    watch.Interface
	selector sharding.Selector
	resource schema.GroupResource
	version  storage.Versioner
	// initial is the version up to which objects are the initial ones, which do
	// not count as filtered events.
	initial uint64

	result   chan watch.Event
	done     chan struct{}
	stopOnce sync.Once
}

// watchPart watches with whole, and filters here where only a part is wanted.
func (s *tenantStorage) watchPart(ctx context.Context, c collection, version uint64,
	whole func(ctx context.Context, c collection, version uint64) (watch.Interface, error),
) (watch.Interface, error) {
	if !isSharded(&c.opts.Predicate) {
		return whole(ctx, c, version)
	}
	w := &shardedWatch{selector: c.opts.Predicate.ShardSelector, resource: s.named, version: s.Versioner(), result: make(chan watch.Event), done: make(chan struct{})}
	var err error
	if wantsInitialEvents(c.opts) {
		if w.initial, err = s.inner.GetCurrentResourceVersion(ctx); err != nil {
			return newErrorWatch(err), nil
		}
	}
	c.opts.Predicate.ShardSelector = nil
	if w.inner, err = whole(ctx, c, version); err != nil {
		return nil, err
	}
	metrics.RecordShardedWatchStarted(w.resource)
	if !s.streams.start(func() { w.run(s.streams.ended) }) {
		w.Stop()
		return nil, apierrors.NewServiceUnavailable("the storage is closed")
	}
	return w, nil
}

// ResultChan implements watch.Interface.
func (w *shardedWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *shardedWatch) Stop() {
	w.stopOnce.Do(func() {
		close(w.done)
		w.inner.Stop()
		metrics.RecordShardedWatchStopped(w.resource)
	})
}

func (w *shardedWatch) run(ended <-chan struct{}) {
	defer close(w.result)
	defer w.inner.Stop()
	for {
		var event watch.Event
		var ok bool
		select {
		case event, ok = <-w.inner.ResultChan():
			if !ok {
				return
			}
		case <-w.done:
			return
		case <-ended:
			return
		}
		if event, ok = w.show(event); !ok {
			continue
		}
		select {
		case w.result <- event:
		case <-w.done:
			return
		case <-ended:
			return
		}
	}
}

// show returns what clients see of an event, if anything.
func (w *shardedWatch) show(event watch.Event) (watch.Event, bool) {
	switch event.Type {
	case watch.Bookmark:
		return annotateEnd(event, w.selector.String()), true
	case watch.Error:
		return event, true
	default:
		matches, err := w.selector.Matches(event.Object)
		if err != nil {
			return errorEvent(err), true
		}
		if !matches && w.isNews(event.Object) {
			metrics.WatchFilteredEventsTotal.WithLabelValues(w.resource.Group, w.resource.Resource).Inc()
		}
		return event, matches
	}
}

// isNews says whether an object is none of the initial ones.
func (w *shardedWatch) isNews(obj runtime.Object) bool {
	version, err := w.version.ObjectResourceVersion(obj)
	return err == nil && version > w.initial
}

// annotateEnd annotates the bookmark that ends initial events.
func annotateEnd(event watch.Event, selector string) watch.Event {
	if end, err := storage.HasInitialEventsEndBookmarkAnnotation(event.Object); err != nil || !end {
		return event
	}
	event.Object = event.Object.DeepCopyObject()
	if err := annotateShardInfo(event.Object, selector); err != nil {
		return errorEvent(err)
	}
	return event
}

func annotateShardInfo(obj runtime.Object, selector string) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("bookmark: %w", err)
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[ShardInfoAnnotation] = selector
	object.SetAnnotations(annotations)
	return nil
}

// retrySoon tells clients that asked for a version in the future when to retry,
// which etcd3 leaves out.
func retrySoon(err error) error {
	var status *apierrors.StatusError
	if !storage.IsTooLargeResourceVersion(err) || !errors.As(err, &status) || status.ErrStatus.Details.RetryAfterSeconds != 0 {
		return err
	}
	told, details := *status, *status.ErrStatus.Details
	details.RetryAfterSeconds = futureRetrySeconds
	told.ErrStatus.Details = &details
	return &told
}
