package client

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is a pointer to an API type, as stored by informers and returned by clients.
type Object interface {
	runtime.Object
	metav1.Object
}

// Key identifies an object among all logical clusters. It is comparable and can be an item of a work queue.
type Key struct {
	// Shard is set for objects of the cache server only.
	Shard   string
	Cluster logicalcluster.Name
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	Name      string
}

// KeyOf returns the key of an object from a shard. Use Informer.KeyOf for objects from a cache server.
func KeyOf(obj metav1.Object) Key {
	return Key{Cluster: logicalcluster.From(obj), Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// String returns [shard|]cluster|namespace/name, or [shard|]cluster|name for cluster-scoped objects.
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

// SplitKey parses the result of Key.String.
func SplitKey(key string) (Key, error) {
	var k Key
	parts := strings.Split(key, "|")
	if len(parts) == 3 && parts[0] != "" {
		k.Shard, parts = parts[0], parts[1:]
	}
	invalid := func() (Key, error) {
		return Key{}, fmt.Errorf("invalid key %q: want [shard|]cluster|[namespace/]name", key)
	}
	if len(parts) != 2 {
		return invalid()
	}
	k.Cluster, k.Name = logicalcluster.Name(parts[0]), parts[1]
	namespace, name, namespaced := strings.Cut(k.Name, "/")
	if namespaced {
		k.Namespace, k.Name = namespace, name
	}
	if k.Cluster == "" || k.Name == "" || strings.Contains(k.Name, "/") || (namespaced && k.Namespace == "") {
		return invalid()
	}
	return k, nil
}

// local is a key without the logical cluster. It shares the strings of the object, so that they need no
// additional memory.
type local struct{ shard, namespace, name string }

func (k Key) local() local { return local{shard: k.Shard, namespace: k.Namespace, name: k.Name} }

func (l local) key(cluster logicalcluster.Name) Key {
	return Key{Shard: l.shard, Cluster: cluster, Namespace: l.namespace, Name: l.name}
}
