package definitions

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

// Sources are all that say which custom resources are served: system
// definitions, then what was added, in that order, and then
// CustomResourceDefinition objects. The first that has a resource wins.
type Sources struct {
	system *System
	index  *Index // nil if there are no CustomResourceDefinition objects

	mu    sync.Mutex // held while one is added or removed
	added atomic.Pointer[[]*Source]

	changes Listeners[Change] // of all
	theirs  Listeners[Change] // of those that were added
}

// NewSources returns sources that have system definitions only.
func NewSources(system *System) *Sources {
	s := &Sources{system: system}
	s.added.Store(&[]*Source{})
	return s
}

// Add has a source asked until remove is called. Whoever adds it sees to it that
// its names are free. When Add or remove returns, watches of what is served by
// another source than before have been ended.
func (s *Sources) Add(source Source) (remove func()) {
	s.set(func(all []*Source) []*Source { return append(all, &source) })
	stop := source.Subscribe(s.theyChanged)
	s.theyChanged(Change{})
	return sync.OnceFunc(func() {
		stop()
		s.set(func(all []*Source) []*Source {
			return slices.DeleteFunc(all, func(other *Source) bool { return other == &source })
		})
		s.theyChanged(Change{})
	})
}

func (s *Sources) set(change func([]*Source) []*Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := change(slices.Clone(*s.added.Load()))
	s.added.Store(&all)
}

func (s *Sources) theyChanged(c Change) {
	s.changes.Notify(c)
	s.theirs.Notify(c)
}

// Subscribe has f told of every change, until stop is called.
func (s *Sources) Subscribe(f func(Change)) (stop func()) { return s.changes.Add(f) }

// Resolve returns the definition for a request, or nil where there is none.
func (s *Sources) Resolve(ctx context.Context, l Lookup) (*Definition, error) {
	if d, err := s.system.resolve(ctx, l); d != nil || err != nil {
		return d, err
	}
	for _, source := range *s.added.Load() {
		if d, err := (*source).Resolve(ctx, l); d != nil || err != nil {
			return d, err
		}
	}
	if s.index != nil {
		if d, err := s.index.Resolve(ctx, l); d != nil || err != nil {
			return d, err
		}
	}
	return s.read(ctx, l)
}

// Defined reports whether a system definition, or a known CustomResourceDefinition object of
// a logical cluster, has a resource.
func (s *Sources) Defined(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return s.system.in(cluster, resource) != nil || s.index != nil && s.index.has(cluster, resource)
}

// read asks storage for what no source knows.
func (s *Sources) read(ctx context.Context, l Lookup) (*Definition, error) {
	for _, source := range *s.added.Load() {
		if d, err := (*source).Read(ctx, l); d != nil || err != nil {
			return d, err
		}
	}
	if s.index == nil {
		return nil, nil
	}
	return s.index.Read(ctx, l)
}

// List returns all definitions of a logical cluster.
func (s *Sources) List(ctx context.Context, cluster request.Cluster) ([]*Definition, error) {
	all, err := s.beforeIndex(ctx, cluster, s.system.list(cluster), nil)
	if err != nil || s.index == nil {
		return all, err
	}
	last, err := s.index.List(ctx, cluster)
	return merge(all, last), err
}

// beforeIndex returns the definitions of a logical cluster that go before
// CustomResourceDefinition objects, but for those of one source: some of the system, and
// those of the other sources.
func (s *Sources) beforeIndex(ctx context.Context, cluster request.Cluster, system []*Definition, except Source) ([]*Definition, error) {
	all := slices.Clip(system)
	for _, source := range *s.added.Load() {
		if *source == except {
			continue
		}
		next, err := (*source).List(ctx, cluster)
		if err != nil {
			return nil, err
		}
		all = merge(all, next)
	}
	return all, nil
}

// merge adds those of next whose resources all does not have.
func merge(all, next []*Definition) []*Definition {
	if len(all) == 0 {
		return slices.Clip(next)
	}
	taken := make(map[schema.GroupResource]bool, len(all))
	for _, d := range all {
		taken[d.Schema.Resource] = true
	}
	for _, d := range next {
		if !taken[d.Schema.Resource] {
			all = append(all, d)
		}
	}
	return all
}
