package client

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/labels"
)

// UnionLister reads a Union: for objects on several shards, it returns the valid copy. The returned objects are
// shared: copy them before changing them.
type UnionLister[T Object] struct {
	union *Union[T]
}

// Lister returns the lister of the objects of all shards.
func (u *Union[T]) Lister() UnionLister[T] { return UnionLister[T]{u} }

// Get returns the object with the given key on any shard. The shard of the key is ignored, because the object may
// have moved. It returns NotFound, ErrNotOwned as Lister.Get does, or ErrIncomplete while a shard that may have
// the object has not been read.
func (l UnionLister[T]) Get(key Key) (T, error) {
	obj, _, ok := l.find(key)
	if !ok {
		return obj, l.union.missed(key)
	}
	return obj, nil
}

// Find is Get, and returns the shard of the object, too.
func (l UnionLister[T]) Find(key Key) (obj T, shard string, err error) {
	obj, m, ok := l.find(key)
	if !ok {
		return obj, "", l.union.missed(key)
	}
	return obj, m.shard, nil
}

func (l UnionLister[T]) find(key Key) (T, *unionMember[T], bool) {
	u := l.union
	key.Shard = ""
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	members := *u.members.Load()
	if one, ok := u.locations.single[key.Cluster]; ok {
		m := members[one.member]
		obj, found := m.informer.store.within(one.in, key.local())
		return obj, m, found
	}
	if s := u.locations.several[key.Cluster]; s != nil {
		// If the valid copy was just deleted, the previous one is valid.
		for _, at := range slices.Backward(s.copies[key.local()]) {
			if obj, found := members[at].informer.store.get(key); found {
				return obj, members[at], true
			}
		}
	}
	var none T
	return none, nil, false
}

// ShardOf returns the shard with the most objects of a logical cluster, or "".
func (l UnionLister[T]) ShardOf(cluster logicalcluster.Name) string {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	if in := u.locations.members(cluster); len(in) > 0 {
		return (*u.members.Load())[in[0]].shard
	}
	return ""
}

// Len returns the number of objects.
func (l UnionLister[T]) Len() int {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	n := 0
	for _, m := range *u.members.Load() {
		if m != nil {
			n += m.informer.store.len()
		}
	}
	for _, s := range u.locations.several {
		for _, copies := range s.copies {
			n -= len(copies) - 1
		}
	}
	return n
}

// Clusters returns the names of the logical clusters that have objects.
func (l UnionLister[T]) Clusters() []logicalcluster.Name {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	names := make([]logicalcluster.Name, 0, len(u.locations.single)+len(u.locations.several))
	names = slices.AppendSeq(names, maps.Keys(u.locations.single))
	return slices.AppendSeq(names, maps.Keys(u.locations.several))
}

// List returns all objects that match, in no particular order. A nil selector matches everything.
func (l UnionLister[T]) List(selector labels.Selector) []T {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	var all []T
	for _, m := range *u.members.Load() {
		if m != nil {
			all = append(all, l.valid(m, m.informer.Lister().List(selector))...)
		}
	}
	return all
}

// ByIndex returns the objects with a value of the named index, which all informers must have.
func (l UnionLister[T]) ByIndex(index, value string) ([]T, error) {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	var all []T
	for _, m := range *u.members.Load() {
		if m == nil {
			continue
		}
		found, err := m.informer.store.byIndex(index, value)
		if err != nil {
			return nil, err
		}
		all = append(all, l.valid(m, found)...)
	}
	return all, nil
}

// InCluster returns the objects of a logical cluster that match, ordered by namespace and name.
func (l UnionLister[T]) InCluster(cluster logicalcluster.Name, selector labels.Selector) []T {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	in := u.locations.members(cluster)
	all := make([]T, 0, len(in))
	for _, at := range in {
		m := (*u.members.Load())[at]
		all = append(all, l.valid(m, m.informer.Lister().Cluster(cluster).List(selector))...)
	}
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

// valid drops superseded copies, with the lock of the locations held.
func (l UnionLister[T]) valid(m *unionMember[T], objs []T) []T {
	if len(l.union.locations.several) == 0 {
		return objs
	}
	return slices.DeleteFunc(objs, func(obj T) bool {
		key := KeyOf(obj)
		return l.union.locations.superseded(key.Cluster, key.local(), m.id)
	})
}
