package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
)

// Attributes compute what the selectors of lists and watches are matched with,
// where that is more than the attributes that the watch cache keeps of every
// object. They are computed when they are asked for, of the objects in the scope
// of the request only, and nothing is kept: whoever selects by them bears what
// they cost. They can be used concurrently.
type Attributes struct {
	// Get returns the attributes of an object. It is called while events of the
	// resource wait, so it must be quick, must not block, and must not change the
	// object.
	Get storage.AttrFunc
}

// Select returns the options of a list or watch with selectors that are matched
// with the attributes. Watches that share the attributes by their pointer share
// what is computed of an event.
func (a *Attributes) Select(opts storage.ListOptions) storage.ListOptions {
	if opts.Predicate.Field == nil {
		opts.Predicate.Field = fields.Everything()
	}
	opts.Predicate.Field = attributesSelector{Selector: opts.Predicate.Field, attributes: a}
	opts.Predicate.GetAttrs = a.Get
	return opts
}

// attributesSelector carries attributes through storage.Interface.
type attributesSelector struct {
	fields.Selector

	attributes *Attributes
}

// takeAttributes takes the attributes out of a predicate that has some.
func takeAttributes(pred *storage.SelectionPredicate) *Attributes {
	carrier, ok := pred.Field.(attributesSelector)
	if !ok {
		return nil
	}
	pred.Field = carrier.Selector
	return carrier.attributes
}

// olderWatches counts watches of etcd, to tell their streams apart.
var olderWatches atomic.Int64

// olderProgress is how often a watch that catches up asks etcd how far it is.
const olderProgress = 100 * time.Millisecond

// watchOlder watches in etcd from a version that the hub does not remember, on
// an etcd stream of its own, with a bookmark as soon as the watch has caught up.
// It ends with ctx, which must end before the hub is closed.
func (s *tenantStorage) watchOlder(ctx context.Context, c collection) (watch.Interface, error) {
	ctx = cacheContext(ctx, fmt.Sprintf("older watch %d of %s", olderWatches.Add(1), s.keys.root))
	w, err := s.raw.Watch(ctx, c.key, c.opts)
	if err != nil {
		return nil, err
	}
	s.asking.Go(func() { s.askProgress(ctx) })
	return w, nil
}

// askProgress asks etcd for the progress of the stream of ctx, until ctx ends.
func (s *tenantStorage) askProgress(ctx context.Context) {
	ticker := time.NewTicker(olderProgress)
	defer ticker.Stop()
	for {
		if err := s.raw.RequestWatchProgress(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(4).Info("Cannot request a progress notification from etcd", "err", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
