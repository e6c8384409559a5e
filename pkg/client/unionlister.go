package client

import (
	"cmp"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/labels"
)

// UnionLister reads what a Union has: of objects that several shards have, the copy that counts.
// Its answers are shared with everybody: copy before changing.
type UnionLister[T Object] struct {
	union *Union[T]
}

// Lister returns the read access to the objects of all shards.
func (u *Union[T]) Lister() UnionLister[T] { return UnionLister[T]{u} }

// Get returns the object with the given key, on whatever shard it is: that of the key does not
// matter, since the object may have moved meanwhile. It fails with NotFound, with ErrNotOwned
// as Lister.Get, or with ErrIncomplete while a shard has not been read that may have it.
func (l UnionLister[T]) Get(key Key) (T, error) {
	obj, _, ok := l.find(key)
	if !ok {
		return obj, l.union.missed(key)
	}
	return obj, nil
}

// Find is Get, and returns the shard that has the object, too.
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
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	members := *u.members.Load()
	if one, ok := u.places.single[key.Cluster]; ok {
		m := members[one.member]
		obj, found := m.informer.store.within(one.in, key.local())
		return obj, m, found
	}
	if s := u.places.several[key.Cluster]; s != nil {
		// What counts may just have ended: then the one before it does.
		for _, at := range slices.Backward(s.copies[key.local()]) {
			if obj, found := members[at].informer.store.get(key); found {
				return obj, members[at], true
			}
		}
	}
	var none T
	return none, nil, false
}

// ShardOf returns the shard that has objects of a logical cluster, of several the one with the
// most, and "" if none has.
func (l UnionLister[T]) ShardOf(cluster logicalcluster.Name) string {
	u := l.union
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	if in := u.places.members(cluster); len(in) > 0 {
		return (*u.members.Load())[in[0]].shard
	}
	return ""
}

// Len returns the number of objects.
func (l UnionLister[T]) Len() int {
	u := l.union
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	n := 0
	for _, m := range *u.members.Load() {
		if m != nil {
			n += m.informer.store.len()
		}
	}
	for _, s := range u.places.several {
		for _, copies := range s.copies {
			n -= len(copies) - 1
		}
	}
	return n
}

// Clusters returns the names of the logical clusters that have objects.
func (l UnionLister[T]) Clusters() []logicalcluster.Name {
	u := l.union
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	names := make([]logicalcluster.Name, 0, len(u.places.single)+len(u.places.several))
	for name := range u.places.single {
		names = append(names, name)
	}
	for name := range u.places.several {
		names = append(names, name)
	}
	return names
}

// List returns all objects that match, in no particular order. A nil selector matches
// everything.
func (l UnionLister[T]) List(selector labels.Selector) []T {
	u := l.union
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	var all []T
	for _, m := range *u.members.Load() {
		if m != nil {
			all = append(all, l.counting(m, m.informer.Lister().List(selector))...)
		}
	}
	return all
}

// ByIndex returns the objects that the named index, which all informers have, holds under value.
// It fails for an index that does not exist.
func (l UnionLister[T]) ByIndex(index, value string) ([]T, error) {
	u := l.union
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	var all []T
	for _, m := range *u.members.Load() {
		if m == nil {
			continue
		}
		found, err := m.informer.store.byIndex(index, value)
		if err != nil {
			return nil, err
		}
		all = append(all, l.counting(m, found)...)
	}
	return all, nil
}

// InCluster returns the objects of a logical cluster that match, ordered by namespace and name.
func (l UnionLister[T]) InCluster(cluster logicalcluster.Name, selector labels.Selector) []T {
	u := l.union
	u.places.mu.RLock()
	defer u.places.mu.RUnlock()
	in := u.places.members(cluster)
	all := make([]T, 0, len(in))
	for _, at := range in {
		m := (*u.members.Load())[at]
		all = append(all, l.counting(m, m.informer.Lister().Cluster(cluster).List(selector))...)
	}
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

// counting returns those of a member's objects that count, under the lock of the places.
func (l UnionLister[T]) counting(m *unionMember[T], objs []T) []T {
	if len(l.union.places.several) == 0 {
		return objs
	}
	return slices.DeleteFunc(objs, func(obj T) bool {
		key := KeyOf(obj)
		return l.union.places.superseded(key.Cluster, key.local(), m.id)
	})
}
