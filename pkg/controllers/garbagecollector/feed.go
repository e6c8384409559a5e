package garbagecollector

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// emptyFor is how long a resource is followed that has no objects any more.
	emptyFor = time.Minute
	// openAgain is when a resource is tried again that could not be followed.
	openAgain = time.Second
)

// ignored are the keys of what is neither owned nor deleted: Events go by themselves.
const ignored = "/core/events/"

// namespaces are the keys of namespaces.
const namespaces = "/core/namespaces/"

// definers are the prefixes of the keys of what says what a logical cluster serves.
var definers = []string{"/apiextensions.k8s.io/customresourcedefinitions/", "/apis.kcp.io/apibindings"}

// Objects are the objects of one resource as this process has seen them last; a *hub.Hub is one.
type Objects interface {
	Follow(reset func(iter.Seq2[string, runtime.Object]), changed func(key string, before, after runtime.Object)) (stop func())
	Get(key string) runtime.Object
	Walk(prefix string, yield func(key string, obj runtime.Object) bool)
	WaitFresh(ctx context.Context, version uint64) error
}

// Store is what the shard stores.
type Store interface {
	// Resources returns the prefixes of the keys of all resources that have objects, false
	// as long as they are not known, and what is closed when others have.
	Resources() (prefixes []string, changed <-chan struct{}, known bool)
	// WaitFor waits until Resources tells of everything up to a revision.
	WaitFor(ctx context.Context, revision uint64) error
	// Revision asks a quorum how far it is.
	Revision(ctx context.Context) (uint64, error)
	// Exists asks a quorum whether a key is there.
	Exists(ctx context.Context, key string) (bool, error)
	// Hold has the objects of a resource in memory until release is called.
	Hold(ctx context.Context, prefix string) (objects Objects, release func(), err error)
}

// feed follows all resources that have objects, and tells the graph.
type feed struct {
	store  Store
	graph  *graph
	parked *parked

	mu      sync.Mutex // held while sources come or go
	sources map[string]*source
	empty   map[string]time.Time

	byPrefix sync.Map // string to *source, for who only looks
	// settled is the revision up to which the graph has everything, or less.
	settled atomic.Uint64

	signals sync.Mutex
	// unfilled have to be filled, and redefined have something else served than before.
	unfilled  map[*source]struct{}
	redefined map[logicalcluster.Name]struct{}
	// wake says that there are unfilled ones, and served that there are redefined ones.
	wake, served chan struct{}
}

func newFeed(store Store, g *graph, p *parked) *feed {
	return &feed{
		store: store, graph: g, parked: p, sources: map[string]*source{}, empty: map[string]time.Time{},
		unfilled: map[*source]struct{}{}, redefined: map[logicalcluster.Name]struct{}{},
		wake: make(chan struct{}, 1), served: make(chan struct{}, 1),
	}
}

// signal sets something and wakes who waits for it.
func (f *feed) signal(who chan struct{}, set func()) {
	f.signals.Lock()
	set()
	f.signals.Unlock()
	select {
	case who <- struct{}{}:
	default:
	}
}

// takeRedefined returns the logical clusters that serve something else than when it was called
// last.
func (f *feed) takeRedefined() map[logicalcluster.Name]struct{} {
	f.signals.Lock()
	defer f.signals.Unlock()
	taken := f.redefined
	f.redefined = map[logicalcluster.Name]struct{}{}
	return taken
}

// namespaces returns the namespaces of a logical cluster, but not more than so many.
func (f *feed) namespaces(cluster logicalcluster.Name, most int) (names []string) {
	prefix := storage.Key(namespaces, "", cluster, "", "")
	s := f.source(Item(prefix))
	if s == nil {
		return nil
	}
	s.objects.Walk(prefix, func(key string, _ runtime.Object) bool {
		names = append(names, strings.TrimPrefix(key, prefix))
		return len(names) < most
	})
	return names
}

// run follows until ctx ends.
func (f *feed) run(ctx context.Context) {
	var filling sync.WaitGroup
	defer f.close()
	defer filling.Wait()
	filling.Go(func() { f.fill(ctx) })
	for ctx.Err() == nil {
		_, changed, _ := f.store.Resources()
		var again <-chan time.Time
		if wait, err := f.sync(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot follow all that is stored, trying again")
			again = time.After(openAgain)
		} else if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// sync follows what has objects, and nothing else for long. It returns when to look again although
// nothing has changed; 0 is never.
func (f *feed) sync(ctx context.Context) (again time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	prefixes, _, known := f.store.Resources()
	if !known {
		return 0, nil // changed is closed as soon as they are
	}
	has := make(map[string]bool, len(prefixes))
	var failed error
	for _, prefix := range prefixes {
		if prefix == ignored {
			continue
		}
		has[prefix] = true
		delete(f.empty, prefix)
		if f.sources[prefix] == nil {
			if err := f.openLocked(ctx, prefix); err != nil {
				failed = err
			}
		}
	}
	now := time.Now()
	for prefix, s := range f.sources {
		since, empty := f.empty[prefix]
		switch {
		case has[prefix]:
			continue
		case !empty:
			f.empty[prefix] = now
			again = emptyFor
		case now.Sub(since) >= emptyFor:
			f.closeLocked(ctx, prefix, s)
		default:
			again = max(emptyFor-now.Sub(since), time.Millisecond)
		}
	}
	return again, failed
}

func (f *feed) openLocked(ctx context.Context, prefix string) error {
	objects, release, err := f.store.Hold(ctx, prefix)
	if err != nil {
		return fmt.Errorf("objects below %s: %w", prefix, err)
	}
	if objects == nil { // of which this version knows nothing
		return nil
	}
	s := &source{feed: f, prefix: prefix, objects: objects, filling: true, filled: make(chan struct{})}
	s.defines = slices.ContainsFunc(definers, func(definer string) bool { return strings.HasPrefix(prefix, definer) })
	f.sources[prefix] = s
	f.byPrefix.Store(prefix, s)
	stop := objects.Follow(s.reset, s.changed)
	s.close = func() {
		stop()
		release()
	}
	return nil
}

// closeLocked ends a source of which everything has been seen, and nothing is left.
func (f *feed) closeLocked(ctx context.Context, prefix string, s *source) {
	revision, err := f.store.Revision(ctx)
	if err != nil || s.objects.WaitFresh(ctx, revision) != nil {
		return // the next time
	}
	s.close()
	delete(f.sources, prefix)
	delete(f.empty, prefix)
	f.byPrefix.Delete(prefix)
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sources {
		s.close()
	}
	f.sources = map[string]*source{}
	f.byPrefix.Clear()
}

// source returns what follows the resource of an item, or nil.
func (f *feed) source(item Item) *source {
	s, _ := f.byPrefix.Load(item.prefix())
	found, _ := s.(*source)
	return found
}

// settle waits until the graph has all that a quorum has agreed to, which is returned.
func (f *feed) settle(ctx context.Context) (uint64, error) {
	revision, err := f.store.Revision(ctx)
	if err != nil {
		return 0, err
	}
	if err := f.store.WaitFor(ctx, revision); err != nil {
		return 0, err
	}
	if _, err := f.sync(ctx); err != nil {
		return 0, err
	}
	f.mu.Lock()
	sources := slices.Collect(maps.Values(f.sources))
	f.mu.Unlock()
	for _, s := range sources {
		if err := s.objects.WaitFresh(ctx, revision); err != nil {
			return 0, fmt.Errorf("objects below %s: %w", s.prefix, err)
		}
		if err := s.waitFilled(ctx); err != nil {
			return 0, err
		}
	}
	f.settled.Store(revision)
	return revision, nil
}

// fill fills sources that know nothing yet, or nothing right any more, until ctx ends.
func (f *feed) fill(ctx context.Context) {
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		}
		f.signals.Lock()
		unfilled := f.unfilled
		f.unfilled = map[*source]struct{}{}
		f.signals.Unlock()
		for s := range unfilled {
			s.fill()
		}
	}
}
