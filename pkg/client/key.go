package client

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is what informers hold and clients return: a pointer to an API type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Key identifies an object among all logical clusters. It is comparable and
// can be an item of a work queue as it is.
type Key struct {
	// Shard is set for objects of the cache server only.
	Shard string
	// Cluster is the logical cluster.
	Cluster logicalcluster.Name
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Name is the object's name.
	Name string
}

// KeyOf returns the key of an object that a shard served. It leaves the shard
// empty: ask the informer of a cache server for its objects' keys.
func KeyOf(obj metav1.Object) Key {
	return Key{Cluster: logicalcluster.From(obj), Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// KeyFor returns the key of an object as text: cluster|namespace/name, or
// cluster|name.
func KeyFor(obj metav1.Object) string { return KeyOf(obj).String() }

// String returns cluster|namespace/name, cluster|name for cluster-scoped
// objects, and the same after "shard|" for objects of the cache server.
func (k Key) String() string {
	var b strings.Builder
	b.Grow(len(k.Shard) + len(k.Cluster) + len(k.Namespace) + len(k.Name) + 3)
	if k.Shard != "" {
		b.WriteString(k.Shard)
		b.WriteByte('|')
	}
	b.WriteString(string(k.Cluster))
	b.WriteByte('|')
	if k.Namespace != "" {
		b.WriteString(k.Namespace)
		b.WriteByte('/')
	}
	b.WriteString(k.Name)
	return b.String()
}

// SplitKey takes apart what Key.String and KeyFor make.
func SplitKey(key string) (Key, error) {
	var k Key
	parts := strings.Split(key, "|")
	switch len(parts) {
	case 2:
	case 3:
		k.Shard, parts = parts[0], parts[1:]
		if k.Shard == "" {
			return Key{}, invalidKey(key)
		}
	default:
		return Key{}, invalidKey(key)
	}
	k.Cluster = logicalcluster.Name(parts[0])
	namespace, name, namespaced := strings.Cut(parts[1], "/")
	if namespaced {
		k.Namespace, k.Name = namespace, name
	} else {
		k.Name = namespace
	}
	if k.Cluster == "" || k.Name == "" || strings.Contains(k.Name, "/") || (namespaced && k.Namespace == "") {
		return Key{}, invalidKey(key)
	}
	return k, nil
}

func invalidKey(key string) error {
	return fmt.Errorf("invalid key %q: want [shard|]cluster|[namespace/]name", key)
}

// local is the part of a key below the logical cluster. Its strings are those
// of the object, so that a store costs no text of its own.
type local struct{ shard, namespace, name string }

func (k Key) local() local { return local{shard: k.Shard, namespace: k.Namespace, name: k.Name} }

func (l local) key(cluster logicalcluster.Name) Key {
	return Key{Shard: l.shard, Cluster: cluster, Namespace: l.namespace, Name: l.name}
}
