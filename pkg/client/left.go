package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
)

// Left says what is left to do of a part of the objects.
type Left struct {
	// Version is that up to which all changes were worked off, but those of Keys.
	Version string `json:"version"`
	Keys    []Key  `json:"keys,omitempty"`
}

// LoadedRanges is a RangeSource that is told what is loaded by the informers which have it.
type LoadedRanges interface {
	RangeSource

	// Follow is called by an informer that runs: holds returns the ranges of which it has all
	// objects. It calls stop when it ends.
	Follow(holds func() Ranges) (stop func())
}

// Covers reports whether all that is in other is in r, too.
func (r Ranges) Covers(other Ranges) bool {
	rest := other.minus(r)
	return rest.Empty()
}

// ContainsCluster reports whether the objects of a logical cluster are in the ranges; false unless
// they are by logical cluster.
func (r Ranges) ContainsCluster(name logicalcluster.Name) bool {
	return r.has(ByCluster, HashOf(name.String()))
}

// Reached returns a version up to which handlers have been told of all changes in ranges; false
// if the informer does not have all objects there. Buffered handlers may be behind.
func (i *Informer[T]) Reached(ranges Ranges) (version string, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if h := i.holding; !i.HasSynced() || h != nil && (!h.whole || !h.held.covers.Load().Covers(ranges)) {
		return "", false
	}
	version = i.ResourceVersion()
	return version, version != ""
}

const (
	// changesTimeout is for how long a server is asked for changes at a time. It says by a
	// bookmark up to where they are complete two seconds before the end.
	changesTimeout = 3
	// changesAttempts is how often it is asked.
	changesAttempts = 5
)

// errNoBookmark says that a server has not said up to where its events are complete.
var errNoBookmark = errors.New("the server does not say up to where its events are complete")

// ChangedSince calls f for the objects in ranges that were added, changed or deleted after a version,
// up to those that the server has when this is called, and maybe of some more: each with a state
// that it had then. It fails if the server does not have that history any more, or versions are
// no numbers.
func (i *Informer[T]) ChangedSince(ctx context.Context, version string, ranges Ranges, f func(obj T)) error {
	opts := i.selected
	opts.Limit = 1
	if i.Filtered() == FilteredByServer {
		opts.ShardSelector = ranges.String()
	}
	list, err := i.source.list(ctx, opts)
	if err != nil {
		return err
	}
	info, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	until := info.GetResourceVersion()
	for range changesAttempts {
		order, err := resourceversion.CompareResourceVersion(version, until)
		if err != nil || order >= 0 {
			return err
		}
		if version, err = i.changedUntil(ctx, version, until, ranges, f); err != nil {
			return err
		}
	}
	return errNoBookmark
}

// changedUntil follows one watch, until it ends or has come to a version. It returns up to where it
// has come.
func (i *Informer[T]) changedUntil(ctx context.Context, from, until string, ranges Ranges, f func(obj T)) (string, error) {
	timeout := int64(changesTimeout)
	opts := i.selected
	opts.ResourceVersion, opts.AllowWatchBookmarks, opts.TimeoutSeconds = from, true, &timeout
	if i.Filtered() == FilteredByServer {
		opts.ShardSelector = ranges.String()
	}
	w, err := i.source.watch(ctx, opts)
	if err != nil {
		return from, err
	}
	defer func() {
		w.Stop()
		for open := true; open; {
			_, open = <-w.ResultChan()
		}
	}()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return from, apierrors.FromObject(event.Object)
		}
		info, err := meta.Accessor(event.Object)
		if err != nil {
			return from, fmt.Errorf("%w: %T: %w", errWrongType, event.Object, err)
		}
		if obj, ok := event.Object.(T); ok && event.Type != watch.Bookmark && ranges.Contains(obj) {
			f(obj)
		}
		from = info.GetResourceVersion()
		if order, err := resourceversion.CompareResourceVersion(from, until); err != nil || order >= 0 && event.Type == watch.Bookmark || order > 0 {
			return from, err
		}
	}
	return from, ctx.Err()
}
