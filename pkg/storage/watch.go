package storage

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Watch implements storage.Interface.
func (s *tenantStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if _, err := s.Versioner().ParseResourceVersion(opts.ResourceVersion); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	c, err := s.collect(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	s.waitReady(ctx)
	if s.cache == nil {
		return s.watches.Watch(ctx, c.key, c.opts)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		c.opts.SendInitialEvents = nil
	}
	if s.keys.single(c.tenant) {
		c.opts.Predicate = dispatchedBy(c.opts.Predicate, c.tenant.dispatchValue())
		if c.opts.Recursive && wantsInitialEvents(c.opts) {
			return s.watchWithInitialEvents(ctx, c)
		}
	}
	return s.watches.Watch(ctx, c.key, c.opts)
}

// dispatchedBy has the watch cache find the watcher by the index value.
func dispatchedBy(pred storage.SelectionPredicate, value string) storage.SelectionPredicate {
	if pred.Field == nil {
		pred.Field = fields.Everything()
	}
	pred.Field = dispatchSelector{Selector: pred.Field, value: value}
	pred.IndexFields = append(pred.IndexFields[:len(pred.IndexFields):len(pred.IndexFields)], clusterField)
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
	listOpts := c.opts
	listOpts.Predicate.Limit, listOpts.Predicate.Continue = 0, ""
	listOpts.SendInitialEvents = nil
	if c.opts.SendInitialEvents == nil {
		listOpts.ResourceVersion = "0"
	}
	listOpts.ResourceVersionMatch = ""
	if listOpts.ResourceVersion != "" {
		listOpts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	list := s.newListFunc()
	if err := s.inner.GetList(ctx, c.key, listOpts, list); err != nil {
		if apierrors.IsTooManyRequests(err) {
			return nil, err
		}
		return newErrorWatch(err), nil
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("list for initial events: %w", err)
	}
	stream := &initialEventsWatch{
		storage:         s,
		list:            list,
		resourceVersion: accessor.GetResourceVersion(),
		bookmark:        c.opts.SendInitialEvents != nil && c.opts.Predicate.AllowWatchBookmarks,
		collection:      c,
		result:          make(chan watch.Event),
		done:            make(chan struct{}),
	}
	if !s.streams.start(func() { stream.run(ctx) }) {
		return nil, apierrors.NewServiceUnavailable("the storage is closed")
	}
	return stream, nil
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
