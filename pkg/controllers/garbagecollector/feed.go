package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

// ignored are the keys of Events, which have no owners and expire.
var ignored = storage.ResourcePrefix(corev1.Resource("events")) + "/"

// definitionPrefixes are prefixes of the keys of objects that define the APIs of a logical cluster.
var definitionPrefixes = []string{
	storage.ResourcePrefix(apiextensionsv1.Resource("customresourcedefinitions")) + "/",
	storage.ResourcePrefix(apisv1alpha2.Resource("apibindings")),
}

// Store gives access to the storage of the shard.
type Store interface {
	// Follow reports everything that is stored to a follower. WaitFor waits until all writes up to a revision were reported.
	Follow(f usage.Follower) (stop func())
	WaitFor(ctx context.Context, revision uint64) error
	// Revision returns the current revision of a quorum.
	Revision(ctx context.Context) (uint64, error)
	// Header decodes a stored object that was reported to the follower.
	Header(ctx context.Context, key string, stored []byte) (storage.Header, error)
	// CachedHeader returns the header of an object at a revision or later, and ReadHeader the result of a quorum read.
	CachedHeader(ctx context.Context, key string, revision uint64) (storage.Header, error)
	ReadHeader(ctx context.Context, key string) (storage.Header, error)
	// Keys returns a limited number of keys with a prefix.
	Keys(ctx context.Context, prefix string, most int64) ([]string, error)
}

// feed updates the graph with all writes.
type feed struct {
	store  Store
	graph  *graph
	parked *parked

	// caughtUp is a lower bound of the revision of the graph.
	caughtUp atomic.Uint64
	// read is the revision of the initial state, and written of the latest write since then, by key prefix of the resource.
	read    atomic.Uint64
	written sync.Map // string to uint64

	// filling replaces the graph, and fresh unreadable, after the initial state. Only the follower uses them.
	filling *graph
	fresh   map[Item]struct{}

	mu sync.Mutex
	// unreadable are objects that cannot be decoded.
	unreadable map[Item]struct{}
	// redefined are the logical clusters in which the served APIs have changed, and served is signaled if there are any.
	redefined map[logicalcluster.Name]struct{}
	served    chan struct{}
}

func newFeed(store Store, g *graph, p *parked) *feed {
	return &feed{
		store: store, graph: g, parked: p, unreadable: map[Item]struct{}{},
		redefined: map[logicalcluster.Name]struct{}{}, served: make(chan struct{}, 1),
	}
}

func (f *feed) run(ctx context.Context) {
	defer f.store.Follow(usage.Follower{
		Begin: f.begin, Complete: f.complete,
		Changed: func(key string, before, after []byte, revision uint64) {
			f.changed(ctx, Item(key), before, after, revision)
		},
	})()
	<-ctx.Done()
}

// begin starts a full resync. Until complete, the graph keeps its state, because an incomplete one lacks dependents.
func (f *feed) begin() { f.filling, f.fresh = newGraph(), map[Item]struct{}{} }

func (f *feed) complete(revision uint64) {
	f.mu.Lock()
	f.unreadable, f.fresh = f.fresh, nil
	f.mu.Unlock()
	f.read.Store(revision)
	f.written.Clear() // all are older than revision
	f.graph.replace(f.filling)
	f.filling = nil
}

func (f *feed) changed(ctx context.Context, item Item, before, after []byte, revision uint64) {
	if strings.HasPrefix(string(item), ignored) {
		return
	}
	if f.filling == nil {
		f.written.Store(item.prefix(), revision)
		if slices.ContainsFunc(definitionPrefixes, func(definer string) bool { return strings.HasPrefix(string(item), definer) }) {
			f.redefine(item.LogicalCluster())
		}
	}
	if after != nil && storage.Plain(after) && (before == nil || storage.Plain(before)) {
		return // most objects neither own nor are owned
	}
	was, _ := f.header(ctx, item, before)
	is, err := f.header(ctx, item, after)
	f.note(ctx, item, err)
	switch {
	case err != nil: // the graph keeps the last decoded state
	case f.filling != nil:
		f.filling.changed(item, was, is)
	default:
		if after == nil && len(was.references) > 0 {
			f.parked.Forget(item)
		}
		f.graph.changed(item, was, is)
	}
}

// header returns the zero value if nothing is stored.
func (f *feed) header(ctx context.Context, item Item, stored []byte) (object, error) {
	if stored == nil {
		return object{}, nil
	}
	h, err := f.store.Header(ctx, string(item), stored)
	return objectOf(h), err
}

// note records whether an object is unreadable.
func (f *feed) note(ctx context.Context, item Item, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	unreadable := f.unreadable
	if f.filling != nil {
		unreadable = f.fresh
	}
	if err == nil {
		delete(unreadable, item)
		return
	}
	if _, known := f.unreadable[item]; !known {
		klog.FromContext(ctx).Error(err, "Failed to decode an object: owners in its logical cluster that wait for dependents or orphan them are not deleted", "object", item)
	}
	unreadable[item] = struct{}{}
}

func (f *feed) redefine(cluster logicalcluster.Name) {
	f.mu.Lock()
	f.redefined[cluster] = struct{}{}
	f.mu.Unlock()
	select {
	case f.served <- struct{}{}:
	default:
	}
}

// takeRedefined returns the logical clusters in which the served APIs have changed since the last call.
func (f *feed) takeRedefined() map[logicalcluster.Name]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.redefined
	f.redefined = map[logicalcluster.Name]struct{}{}
	return taken
}

// get returns an object in the state of the graph or newer, so that a reconcile observes the change that caused it.
func (f *feed) get(ctx context.Context, item Item) (object, error) {
	revision := f.read.Load()
	if at, ok := f.written.Load(item.prefix()); ok {
		revision = max(revision, at.(uint64)) //nolint:forcetypeassert // nothing else is stored
	}
	h, err := f.store.CachedHeader(ctx, string(item), revision)
	return objectOf(h), err
}

// catchUp waits until the graph contains all committed writes.
func (f *feed) catchUp(ctx context.Context) error {
	revision, err := f.store.Revision(ctx)
	if err != nil {
		return err
	}
	if err := f.store.WaitFor(ctx, revision); err != nil {
		return err
	}
	f.caughtUp.Store(revision)
	return nil
}

// allReadable returns an error if a logical cluster may contain references that could not be decoded.
func (f *feed) allReadable(cluster logicalcluster.Name) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for item := range f.unreadable {
		if item.LogicalCluster() == cluster {
			return fmt.Errorf("%w: %s", errUnreadable, item)
		}
	}
	return nil
}

var errUnreadable = errors.New("an object in the logical cluster, which may be a dependent, cannot be decoded")
