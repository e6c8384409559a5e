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

// Sources combines system definitions, added sources and CustomResourceDefinition objects, in this order. The
// first source that has a resource wins.
type Sources struct {
	system *System
	index  *Index // nil if there are no CustomResourceDefinition objects

	mu    sync.Mutex // guards updates of added
	added atomic.Pointer[[]*Source]

	changes Listeners[Change] // of all sources
}

// NewSources returns sources with only the system definitions.
func NewSources(system *System) *Sources {
	s := &Sources{system: system}
	s.added.Store(&[]*Source{})
	return s
}

// Add adds a source, until remove is called. The caller must ensure that its names are free. When Add or
// remove returns, watches of resources with another source have ended.
func (s *Sources) Add(source Source) (remove func()) {
	s.set(func(all []*Source) []*Source { return append(all, &source) })
	stop := source.Subscribe(s.changes.Notify)
	s.changes.Notify(Change{})
	return sync.OnceFunc(func() {
		stop()
		s.set(func(all []*Source) []*Source {
			return slices.DeleteFunc(all, func(other *Source) bool { return other == &source })
		})
		s.changes.Notify(Change{})
	})
}

func (s *Sources) set(change func([]*Source) []*Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := change(slices.Clone(*s.added.Load()))
	s.added.Store(&all)
}

// Subscribe calls f for every change, until stop is called.
func (s *Sources) Subscribe(f func(Change)) (stop func()) { return s.changes.Add(f) }

// Resolve returns the definition for a request, or nil.
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

// Defined reports whether a system definition, or an indexed CustomResourceDefinition of a logical cluster,
// defines a resource.
func (s *Sources) Defined(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return s.system.in(cluster, resource) != nil || s.index != nil && s.index.has(cluster, resource)
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

// beforeIndex returns the definitions of a logical cluster that take precedence over
// CustomResourceDefinitions: the given system definitions, and those of all sources except one.
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

// merge appends the definitions of resources in next that are not in all.
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
