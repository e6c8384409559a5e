package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// Watch implements storage.Interface.
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
	if s.cache == nil {
		return s.watchPart(ctx, c, version, s.watchUncached)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		c.opts.SendInitialEvents = nil
	}
	if s.hubFollows(ctx) {
		return s.watchHub(ctx, c, version)
	}
	if c.attributes != nil {
		return s.watchPart(ctx, c, version, s.watchUncached)
	}
	return s.watchPart(ctx, c, version, s.watchCache)
}

// invalidVersion is what reads at a version that is not a number are told.
func invalidVersion(err error) error {
	return badRequestError{apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err)), err}
}

// hubFollows says whether the hub serves. It does, unless the watch cache is
// not filled, or the hub has lost track of it.
func (s *tenantStorage) hubFollows(ctx context.Context) bool {
	return s.hub != nil && s.cache.Ready() && s.hub.Follows(ctx)
}

// watchHub watches through the hub.
func (s *tenantStorage) watchHub(ctx context.Context, c collection, version uint64) (watch.Interface, error) {
	request := hub.Request{Key: c.key, Predicate: c.opts.Predicate, Version: version}
	if c.attributes != nil {
		request.Attributes = c.attributes
	}
	switch {
	case wantsInitialEvents(c.opts):
		request.Start = s.initialEvents(c)
	case c.opts.ResourceVersion == "":
		var err error
		if request.Version, err = s.inner.GetCurrentResourceVersion(ctx); err != nil {
			return newErrorWatch(err), nil
		}
	}
	request.Older = func(ctx context.Context, version uint64) (watch.Interface, error) {
		opts := c.opts
		opts.SendInitialEvents, opts.ResourceVersionMatch = nil, ""
		opts.ResourceVersion = formatVersion(version)
		opts.Predicate.ShardSelector = nil
		opts.Predicate.AllowWatchBookmarks = true
		if c.attributes != nil {
			return s.watchOlder(ctx, collection{key: c.key, opts: opts})
		}
		if s.keys.single(c.tenant) {
			opts.Predicate = dispatchedBy(opts.Predicate, c.tenant.dispatchValue())
		}
		return s.watches.Watch(ctx, c.key, opts)
	}
	return s.hub.Watch(ctx, request)
}

// watchCache watches in the watch cache, while the hub cannot serve.
func (s *tenantStorage) watchCache(ctx context.Context, c collection, version uint64) (watch.Interface, error) {
	if s.keys.single(c.tenant) {
		c.opts.Predicate = dispatchedBy(c.opts.Predicate, c.tenant.dispatchValue())
	}
	if wantsInitialEvents(c.opts) {
		if s.keys.single(c.tenant) && c.opts.Recursive {
			return s.watchWithInitialEvents(ctx, c)
		}
		return s.watches.Watch(ctx, c.key, c.opts)
	}
	if future, err := s.isFuture(ctx, version); err != nil || future {
		if err != nil {
			return newErrorWatch(err), nil
		}
		return s.watchFuture(ctx, c, version)
	}
	return s.watches.Watch(ctx, c.key, c.opts)
}

// watchUncached watches in etcd: a resource without a watch cache, or with
// attributes that the watch cache does not have while the hub cannot serve.
func (s *tenantStorage) watchUncached(ctx context.Context, c collection, version uint64) (watch.Interface, error) {
	future, err := s.isFuture(ctx, version)
	if err != nil {
		return newErrorWatch(err), nil
	}
	if future {
		if !wantsInitialEvents(c.opts) {
			return s.watchFuture(ctx, c, version)
		}
		if err := s.waitFor(ctx, version); err != nil {
			return newErrorWatch(err), nil
		}
	}
	return s.watcherFor(c).Watch(ctx, c.key, c.opts)
}

// dispatchedBy has the watch cache find the watcher by the index value.
func dispatchedBy(pred storage.SelectionPredicate, value string) storage.SelectionPredicate {
	if pred.Field == nil {
		pred.Field = fields.Everything()
	}
	pred.Field = dispatchSelector{Selector: pred.Field, value: value}
	pred.IndexFields = append(slices.Clip(pred.IndexFields), clusterField)
	return pred
}

// dispatchSelector is a selector that says that it wants one value of the
// index, so that the watch cache does not offer it the events of others. It
// need not match the value: the key prefix does.
type dispatchSelector struct {
	fields.Selector
	value string
}

// RequiresExactMatch implements fields.Selector.
func (d dispatchSelector) RequiresExactMatch(field string) (string, bool) {
	if field == clusterField {
		return d.value, true
	}
	return d.Selector.RequiresExactMatch(field)
}

// wantsInitialEvents says whether a watch starts with the objects that exist.
func wantsInitialEvents(opts storage.ListOptions) bool {
	if opts.SendInitialEvents == nil {
		return opts.ResourceVersion == "" || opts.ResourceVersion == "0"
	}
	return *opts.SendInitialEvents
}

// watchWithInitialEvents lists the objects of one logical cluster and then
// watches from the list's resource version. The watch cache itself would walk
// the objects of all logical clusters to find the initial ones.
//
// The list decides how fresh the objects are: consistent for a streamed list
// without a resource version, not older than the one given, and any that the
// cache has where none was asked for.
//
// As in the watch cache, errors come in the stream, but for that of a cache
// which is not ready.
func (s *tenantStorage) watchWithInitialEvents(ctx context.Context, c collection) (watch.Interface, error) {
	list, version, err := s.initialList(ctx, c)
	if err != nil {
		if apierrors.IsTooManyRequests(err) {
			return nil, err
		}
		return newErrorWatch(err), nil
	}
	return newStream(s, c, func(_ context.Context, send func(watch.Event) bool) (uint64, bool) {
		sent := itemsOf(list)
		list = nil // to be collected while the watch lasts
		return version, s.sendInitial(sent, version, c, send)
	}).start(ctx)
}

// errorWatch is a watch that consists of one error.
type errorWatch struct {
	result chan watch.Event
}

func newErrorWatch(err error) errorWatch {
	w := errorWatch{result: make(chan watch.Event, 1)}
	w.result <- errorEvent(err)
	close(w.result)
	return w
}

// ResultChan implements watch.Interface.
func (w errorWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w errorWatch) Stop() {}

func errorEvent(err error) watch.Event {
	return watch.Event{Type: watch.Error, Object: statusOf(err)}
}

func statusOf(err error) runtime.Object {
	status := apierrors.NewInternalError(err).Status()
	var api apierrors.APIStatus
	if errors.As(err, &api) {
		status = api.Status()
	}
	return &status
}
