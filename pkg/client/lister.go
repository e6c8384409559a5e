package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// Lister reads the store of an informer. The returned objects are shared: copy them before changing them.
type Lister[T Object] struct {
	informer *Informer[T]
}

// Lister returns the lister of the informer's objects.
func (i *Informer[T]) Lister() Lister[T] { return Lister[T]{informer: i} }

// ErrNotOwned is returned for objects outside of the loaded ranges of an informer, which may or may not exist.
var ErrNotOwned = errors.New("not in the loaded ranges of this replica")

// ErrIncomplete is returned if no object was found but not everything has been loaded: retry later.
var ErrIncomplete = errors.New("not all objects are loaded yet")

// Get returns the object with the given key, or a NotFound error, or ErrNotOwned.
func (l Lister[T]) Get(key Key) (T, error) {
	obj, ok := l.Lookup(key)
	if !ok {
		return obj, l.informer.missed(key.Cluster, key.Namespace, key.Name)
	}
	return obj, nil
}

// Lookup returns the object with the given key, and whether it was found.
func (l Lister[T]) Lookup(key Key) (T, bool) { return l.informer.store.get(key) }

// missed returns the error for an object that was not found. The position of an unknown object by UID is unknown.
func (i *Informer[T]) missed(cluster logicalcluster.Name, namespace, name string) error {
	if i.rangeState != nil {
		loaded := i.LoadedRanges()
		value := string(cluster)
		if loaded.key == ByNamespace {
			value = namespace
		}
		if loaded.Empty() || loaded.key != ByUID && !loaded.has(loaded.key, hashrange.Hash(value)) {
			return fmt.Errorf("%s %q of logical cluster %q: %w", i.gvr.Resource, name, cluster, ErrNotOwned)
		}
	}
	return apierrors.NewNotFound(i.gvr.GroupResource(), name)
}

// List returns all objects that match, in no particular order. A nil selector matches everything.
func (l Lister[T]) List(selector labels.Selector) []T {
	objs := l.informer.store.list()
	if selector == nil || selector.Empty() {
		return objs
	}
	return slices.DeleteFunc(objs, func(obj T) bool { return !selector.Matches(labels.Set(obj.GetLabels())) })
}

// Len returns the number of objects.
func (l Lister[T]) Len() int { return l.informer.store.len() }

// Clusters returns the names of the logical clusters that have objects.
func (l Lister[T]) Clusters() []logicalcluster.Name { return l.informer.store.clusterNames() }

// ByIndex returns the objects with a value of the named index. It fails if the index does not exist.
func (l Lister[T]) ByIndex(index, value string) ([]T, error) {
	return l.informer.store.byIndex(index, value)
}

// KeysByIndex returns the keys of the objects that ByIndex returns, or none if the index does not exist.
func (l Lister[T]) KeysByIndex(index, value string) []Key {
	found, _ := l.ByIndex(index, value)
	keys := make([]Key, 0, len(found))
	for _, obj := range found {
		keys = append(keys, l.informer.KeyOf(obj))
	}
	return keys
}

// Cluster returns the lister of one logical cluster.
func (l Lister[T]) Cluster(name logicalcluster.Name) ClusterLister[T] {
	return ClusterLister[T]{informer: l.informer, cluster: name}
}

// ClusterLister reads the objects of one logical cluster. On a cache server, these include the replicas
// of all shards.
type ClusterLister[T Object] struct {
	informer *Informer[T]
	cluster  logicalcluster.Name
}

// Get returns an object, or a NotFound error. The namespace of a cluster-scoped object is empty. If several shards
// have the object, e.g. during a migration, it returns that of the first shard by name.
func (l ClusterLister[T]) Get(namespace, name string) (T, error) {
	if !l.informer.sharded {
		return l.informer.Lister().Get(Key{Cluster: l.cluster, Namespace: namespace, Name: name})
	}
	var found T
	var shard string
	var ok bool
	l.informer.store.inCluster(l.cluster, func(key local, obj T) {
		if key.namespace == namespace && key.name == name && (!ok || key.shard < shard) {
			found, shard, ok = obj, key.shard, true
		}
	})
	if !ok {
		return found, l.informer.missed(l.cluster, namespace, name)
	}
	return found, nil
}

// Len returns the number of objects.
func (l ClusterLister[T]) Len() int { return l.informer.store.countIn(l.cluster) }

// List returns the objects that match, ordered by namespace and name. A nil selector matches everything.
func (l ClusterLister[T]) List(selector labels.Selector) []T {
	return l.list(selector, func(local) bool { return true })
}

// ListNamespace is List in one namespace.
func (l ClusterLister[T]) ListNamespace(namespace string, selector labels.Selector) []T {
	return l.list(selector, func(key local) bool { return key.namespace == namespace })
}

func (l ClusterLister[T]) list(selector labels.Selector, in func(local) bool) []T {
	var objs []T
	l.informer.store.inCluster(l.cluster, func(key local, obj T) {
		if in(key) && (selector == nil || selector.Matches(labels.Set(obj.GetLabels()))) {
			objs = append(objs, obj)
		}
	})
	slices.SortFunc(objs, compareObjects)
	return objs
}

// compareObjects orders the objects of one logical cluster.
func compareObjects[T Object](a, b T) int {
	return cmp.Or(
		cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GetName(), b.GetName()),
		cmp.Compare(a.GetAnnotations()[request.ShardAnnotation], b.GetAnnotations()[request.ShardAnnotation]),
	)
}
