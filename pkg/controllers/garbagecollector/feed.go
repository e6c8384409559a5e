package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// ignored are the keys of what is neither owned nor deleted: Events go by themselves.
var ignored = storage.ResourcePrefix(corev1.Resource("events")) + "/"

// definers begin the keys of what says what a logical cluster serves.
var definers = []string{
	storage.ResourcePrefix(apiextensionsv1.Resource("customresourcedefinitions")) + "/",
	storage.ResourcePrefix(apisv1alpha2.Resource("apibindings")),
}

// Store is what the shard stores.
type Store interface {
	// Follow has a follower told of everything that is stored, and WaitFor waits until it was
	// told of all that was written up to a revision.
	Follow(f usage.Follower) (stop func())
	WaitFor(ctx context.Context, revision uint64) error
	// Revision asks a quorum how far it is.
	Revision(ctx context.Context) (uint64, error)
	// Header decodes what the follower is told.
	Header(ctx context.Context, key string, stored []byte) (storage.Header, error)
	// SeenHeader returns the header of an object as of a revision or later, and ReadHeader as a
	// quorum has it.
	SeenHeader(ctx context.Context, key string, revision uint64) (storage.Header, error)
	ReadHeader(ctx context.Context, key string) (storage.Header, error)
	// Keys returns keys that have a prefix, but not more than so many.
	Keys(ctx context.Context, prefix string, most int64) ([]string, error)
}

// feed tells the graph what is written.
type feed struct {
	store  Store
	graph  *graph
	parked *parked

	// caughtUp is the revision up to which the graph has everything, or less.
	caughtUp atomic.Uint64
	// read is the revision as of which everything was read, and written those of the latest
	// write of each resource, by the prefix of its keys, since then.
	read    atomic.Uint64
	written sync.Map // string to uint64

	// filling becomes the graph when all that is there was told, and fresh is what is unreadable
	// of that: the one goroutine that tells has them to itself.
	filling *graph
	fresh   map[Item]struct{}

	mu sync.Mutex
	// unreadable are objects of which nobody knows what they refer to.
	unreadable map[Item]struct{}
	// redefined are the logical clusters that serve something else than before, and served says
	// that there are some.
	redefined map[logicalcluster.Name]struct{}
	served    chan struct{}
}

func newFeed(store Store, g *graph, p *parked) *feed {
	return &feed{
		store: store, graph: g, parked: p, unreadable: map[Item]struct{}{},
		redefined: map[logicalcluster.Name]struct{}{}, served: make(chan struct{}, 1),
	}
}

// run follows until ctx ends.
func (f *feed) run(ctx context.Context) {
	defer f.store.Follow(usage.Follower{
		Begin:    f.begin,
		Complete: f.complete,
		Changed: func(key string, before, after []byte, revision uint64) {
			f.told(ctx, Item(key), before, after, revision)
		},
	})()
	<-ctx.Done()
}

// begin says that all that is there is told now. Until it was, the graph has what it had: nobody
// may believe that an owner has no dependents.
func (f *feed) begin() { f.filling, f.fresh = newGraph(), map[Item]struct{}{} }

func (f *feed) complete(revision uint64) {
	f.mu.Lock()
	f.unreadable, f.fresh = f.fresh, nil
	f.mu.Unlock()
	f.read.Store(revision)
	f.written.Clear() // all are older
	f.graph.replace(f.filling)
	f.filling = nil
}

func (f *feed) told(ctx context.Context, item Item, before, after []byte, revision uint64) {
	if strings.HasPrefix(string(item), ignored) {
		return
	}
	if f.filling == nil {
		f.written.Store(item.prefix(), revision)
		if slices.ContainsFunc(definers, func(definer string) bool { return strings.HasPrefix(string(item), definer) }) {
			f.redefine(item.LogicalCluster())
		}
	}
	if after != nil && storage.Plain(after) && (before == nil || storage.Plain(before)) {
		return // most neither own nor are owned
	}
	was, _ := f.header(ctx, item, before)
	is, err := f.header(ctx, item, after)
	f.note(ctx, item, err)
	switch {
	case err != nil: // the graph keeps what it knows of it
	case f.filling != nil:
		f.filling.changed(item, was, is)
	default:
		if after == nil && len(was.references) > 0 {
			f.parked.remove(item)
		}
		f.graph.changed(item, was, is)
	}
}

// header returns the zero value of nothing.
func (f *feed) header(ctx context.Context, item Item, stored []byte) (object, error) {
	if stored == nil {
		return object{}, nil
	}
	h, err := f.store.Header(ctx, string(item), stored)
	return objectOf(h), err
}

// note remembers which objects are unreadable.
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
		klog.FromContext(ctx).Error(err, "Cannot read an object: no owner in its logical cluster goes that waits for its dependents or orphans them", "object", item)
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

// takeRedefined returns the logical clusters that serve something else than when it was called
// last.
func (f *feed) takeRedefined() map[logicalcluster.Name]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.redefined
	f.redefined = map[logicalcluster.Name]struct{}{}
	return taken
}

// get returns an object as the graph knows it, or newer: whoever is told to look at something
// finds there what he was told of.
func (f *feed) get(ctx context.Context, item Item) (object, error) {
	revision := f.read.Load()
	if at, ok := f.written.Load(item.prefix()); ok {
		revision = max(revision, at.(uint64)) //nolint:forcetypeassert // nothing else is stored
	}
	h, err := f.store.SeenHeader(ctx, string(item), revision)
	return objectOf(h), err
}

// catchUp waits until the graph has all that a quorum has agreed to.
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

// allReadable returns an error if somebody in a logical cluster may refer to others unseen.
func (f *feed) allReadable(cluster logicalcluster.Name) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for item := range maps.Keys(f.unreadable) {
		if item.LogicalCluster() == cluster {
			return fmt.Errorf("%w: %s", errUnreadable, item)
		}
	}
	return nil
}

var errUnreadable = errors.New("an object in the logical cluster cannot be read, which may be a dependent")
