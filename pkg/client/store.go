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
	clusters groups[logicalcluster.Name, local, T]
	indices  map[string]groups[string, Key, T]
	count    int
}

func newStore[T Object](indexers map[string]IndexFunc[T]) *store[T] {
	s := &store[T]{
		indexers: map[string]IndexFunc[T]{}, clusters: groups[logicalcluster.Name, local, T]{}, indices: map[string]groups[string, Key, T]{},
	}
	_ = s.addIndexers(indexers) // there are no others
	return s
}

func (s *store[T]) get(key Key) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.clusters.get(key.Cluster, key.local())
}

func (s *store[T]) set(key Key, obj T) (old T, replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, replaced = s.clusters.get(key.Cluster, key.local())
	s.clusters.set(key.Cluster, key.local(), obj)
	if replaced {
		s.unindex(key, old)
	} else {
		s.count++
	}
	for name := range s.indexers {
		s.index(name, key, obj)
	}
	return old, replaced
}

func (s *store[T]) remove(key Key) (old T, removed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, removed = s.clusters.get(key.Cluster, key.local()); removed {
		s.unindex(key, old)
		s.clusters.remove(key.Cluster, key.local())
		s.count--
	}
	return old, removed
}

func (s *store[T]) index(name string, key Key, obj T) {
	for _, value := range s.indexers[name](obj) {
		s.indices[name].set(value, key, obj)
	}
}

func (s *store[T]) unindex(key Key, obj T) {
	for name, f := range s.indexers {
		for _, value := range f(obj) {
			s.indices[name].remove(value, key)
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
	if in, ok := s.clusters[cluster]; ok {
		return in.len()
	}
	return 0
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
	for name, f := range indexers {
		s.indexers[name], s.indices[name] = f, groups[string, Key, T]{}
		for cluster, in := range s.clusters {
			for l, obj := range in.all {
				s.index(name, l.key(cluster), obj)
			}
		}
	}
	return nil
}

// groups are objects by logical cluster, or by the value of an index.
type groups[G, K comparable, T Object] map[G]*objects[K, T]

func (g groups[G, K, T]) get(group G, key K) (obj T, found bool) {
	if in := g[group]; in != nil {
		return in.get(key)
	}
	return obj, false
}

// set adds or replaces an object. The name of the group is also replaced by the string of the new object; see
// objects.set.
func (g groups[G, K, T]) set(group G, key K, obj T) {
	in := g[group]
	if in == nil {
		in = &objects[K, T]{key: key, one: obj}
	} else {
		in.set(key, obj)
	}
	g[group] = in
}

func (g groups[G, K, T]) remove(group G, key K) {
	switch in := g[group]; {
	case in == nil:
	case in.len() > 1:
		in.remove(key)
	case in.key == key:
		delete(g, group)
	}
}

// objects are the objects of a logical cluster. Many resources have one per logical cluster, which is stored in place.
type objects[K comparable, T Object] struct {
	key     K
	one     T
	several *several[K, T]
}

const maxEntries = 16

// several are two or more objects. Up to maxEntries are in a slice, because a map would take 50% more memory.
type several[K comparable, T Object] struct {
	entries []keyed[K, T]
	many    map[K]T
}

type keyed[K comparable, T Object] struct {
	key K
	obj T
}

func (o *objects[K, T]) len() int {
	if o.several == nil {
		return 1
	}
	return len(o.several.entries) + len(o.several.many)
}

func (o *objects[K, T]) get(key K) (obj T, found bool) {
	switch s := o.several; {
	case s == nil:
		if key == o.key {
			return o.one, true
		}
	case s.many != nil:
		obj, found = s.many[key]
	default:
		if at := s.find(key); at >= 0 {
			return s.entries[at].obj, true
		}
	}
	return obj, found
}

// set adds or replaces an object and its key, because strings of the old object would keep its list in memory.
func (o *objects[K, T]) set(key K, obj T) {
	switch {
	case o.several != nil:
		o.several.set(key, obj)
	case key == o.key:
		o.key, o.one = key, obj
	default:
		*o = objects[K, T]{several: &several[K, T]{entries: []keyed[K, T]{{o.key, o.one}, {key, obj}}}}
	}
}

// remove removes an object that is not the only one.
func (o *objects[K, T]) remove(key K) {
	if o.several.remove(key); o.len() > 1 {
		return
	}
	for key, obj := range o.all {
		*o = objects[K, T]{key: key, one: obj}
		return
	}
}

func (o *objects[K, T]) all(visit func(K, T) bool) {
	s := o.several
	if s == nil {
		visit(o.key, o.one)
		return
	}
	for _, e := range s.entries {
		if !visit(e.key, e.obj) {
			return
		}
	}
	for l, obj := range s.many {
		if !visit(l, obj) {
			return
		}
	}
}

func (s *several[K, T]) find(key K) int {
	return slices.IndexFunc(s.entries, func(e keyed[K, T]) bool { return e.key == key })
}

func (s *several[K, T]) set(key K, obj T) {
	n := len(s.entries)
	switch at := s.find(key); {
	case at >= 0:
		s.entries[at] = keyed[K, T]{key, obj}
		return
	case s.many == nil && n < maxEntries:
		if n == cap(s.entries) { // the spare capacity is small, because most logical clusters will not have more objects
			s.entries = append(make([]keyed[K, T], 0, min(n+4, maxEntries)), s.entries...)
		}
		s.entries = append(s.entries, keyed[K, T]{key, obj})
		return
	case s.many == nil:
		s.many = make(map[K]T, maxEntries+1)
		for _, e := range s.entries {
			s.many[e.key] = e.obj
		}
		s.entries = nil
	}
	delete(s.many, key) // assigning to an existing key would retain the old key
	s.many[key] = obj
}

func (s *several[K, T]) remove(key K) {
	if at := s.find(key); at >= 0 {
		s.entries = slices.Delete(s.entries, at, at+1)
	}
	delete(s.many, key)
}
