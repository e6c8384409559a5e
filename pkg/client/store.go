package client

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// IndexFunc returns the values of an object in an index.
type IndexFunc[T Object] func(obj T) []string

type store[T Object] struct {
	mu       sync.RWMutex
	indexers map[string]IndexFunc[T]
	clusters map[logicalcluster.Name]*objects[local, T]
	indices  map[string]map[string]*objects[Key, T]
	count    int
}

func newStore[T Object](indexers map[string]IndexFunc[T]) *store[T] {
	s := &store[T]{
		indexers: maps.Clone(indexers), clusters: map[logicalcluster.Name]*objects[local, T]{}, indices: make(map[string]map[string]*objects[Key, T], len(indexers)),
	}
	for name := range s.indexers {
		s.indices[name] = map[string]*objects[Key, T]{}
	}
	return s
}

func (s *store[T]) get(key Key) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	in, ok := s.clusters[key.Cluster]
	if !ok {
		var none T
		return none, false
	}
	return in.get(key.local())
}

// of returns the objects of a logical cluster, or nil. Only the writer of the store may read them without the
// lock.
func (s *store[T]) of(cluster logicalcluster.Name) *objects[local, T] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.clusters[cluster]
}

func (s *store[T]) within(in *objects[local, T], l local) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return in.get(l)
}

func (s *store[T]) set(key Key, obj T) (old T, replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.clusters[key.Cluster]
	if ok {
		old, replaced = in.get(key.local())
		in.set(key.local(), obj)
	} else {
		in = &objects[local, T]{key: key.local(), one: obj}
	}
	if replaced {
		s.unindex(key, old)
	} else {
		s.count++
	}
	s.clusters[key.Cluster] = in // replace the key by that of the new object
	s.index(key, obj)
	return old, replaced
}

func (s *store[T]) remove(key Key) (old T, removed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.clusters[key.Cluster]
	if ok {
		old, removed = in.get(key.local())
	}
	if !removed {
		return old, false
	}
	s.unindex(key, old)
	if in.len() == 1 {
		delete(s.clusters, key.Cluster)
	} else {
		in.remove(key.local())
	}
	s.count--
	return old, true
}

func (s *store[T]) index(key Key, obj T) {
	for name := range s.indexers {
		s.indexAs(name, key, obj)
	}
}

func (s *store[T]) indexAs(name string, key Key, obj T) {
	index := s.indices[name]
	for _, value := range s.indexers[name](obj) {
		if in := index[value]; in != nil {
			in.set(key, obj)
		} else {
			index[value] = &objects[Key, T]{key: key, one: obj}
		}
	}
}

func (s *store[T]) unindex(key Key, obj T) {
	for name, f := range s.indexers {
		index := s.indices[name]
		for _, value := range f(obj) {
			switch in := index[value]; {
			case in == nil:
			case in.len() > 1:
				in.remove(key)
			case in.key == key:
				delete(index, value)
			}
		}
	}
}

func (s *store[T]) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.count
}

func (s *store[T]) clusterNames() []logicalcluster.Name {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.AppendSeq(make([]logicalcluster.Name, 0, len(s.clusters)), maps.Keys(s.clusters))
}

func (s *store[T]) list() []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	objs := make([]T, 0, s.count)
	for _, in := range s.clusters {
		for _, obj := range in.all {
			objs = append(objs, obj)
		}
	}
	return objs
}

func (s *store[T]) countIn(cluster logicalcluster.Name) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	in, ok := s.clusters[cluster]
	if !ok {
		return 0
	}
	return in.len()
}

func (s *store[T]) inCluster(cluster logicalcluster.Name, visit func(local, T)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	in, ok := s.clusters[cluster]
	if !ok {
		return
	}
	for l, obj := range in.all {
		visit(l, obj)
	}
}

func (s *store[T]) byIndex(name, value string) ([]T, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	index, ok := s.indices[name]
	if !ok {
		return nil, fmt.Errorf("the informer has no index %q: add it to InformerOptions.Indexers, or with AddIndexers", name)
	}
	in := index[value]
	if in == nil {
		return []T{}, nil
	}
	objs := make([]T, 0, in.len())
	for _, obj := range in.all {
		objs = append(objs, obj)
	}
	return objs, nil
}

func (s *store[T]) keys(selects func(Key, T) bool) []Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var keys []Key
	for cluster, in := range s.clusters {
		for l, obj := range in.all {
			if key := l.key(cluster); selects(key, obj) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

func (s *store[T]) addIndexers(indexers map[string]IndexFunc[T]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range indexers {
		if _, ok := s.indexers[name]; ok {
			return fmt.Errorf("index %q already exists", name)
		}
	}
	if s.indexers == nil {
		s.indexers = map[string]IndexFunc[T]{}
	}
	for name, f := range indexers {
		s.indexers[name], s.indices[name] = f, map[string]*objects[Key, T]{}
		for cluster, in := range s.clusters {
			for l, obj := range in.all {
				s.indexAs(name, l.key(cluster), obj)
			}
		}
	}
	return nil
}
