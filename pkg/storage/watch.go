package storage

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
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
	if c.attributes != nil || c.claimLabels {
		request.Attributes = attributesKey{c.attributes, c.claimLabels}
	}
	switch {
	case wantsInitialEvents(c.opts):
		request.Start = s.initialEvents(c)
	case c.opts.ResourceVersion == "":
		// Now is when the client is told that it watches.
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
		if c.beyondCache() || s.hub.CutShort() {
			return s.watchOlder(ctx, collection{key: c.key, opts: opts})
		}
		if s.keys.single(c.tenant) {
			opts.Predicate = dispatchedBy(opts.Predicate, c.tenant.dispatchValue())
		}
		context.AfterFunc(ctx, s.quiet.watch())
		return s.inner.Watch(ctx, c.key, opts)
	}
	return s.hub.Watch(ctx, request)
}

// invalidVersion is what reads at a version that is not a number are told.
func invalidVersion(err error) error {
	return badRequestError{apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err)), err}
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

// wantsInitialEvents reports whether a watch starts with the objects that exist.
func wantsInitialEvents(opts storage.ListOptions) bool {
	if opts.SendInitialEvents == nil {
		return opts.ResourceVersion == "" || opts.ResourceVersion == "0"
	}
	return *opts.SendInitialEvents
}
