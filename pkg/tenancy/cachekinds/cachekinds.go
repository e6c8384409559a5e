// Package cachekinds defines internal kinds that users cannot see. Shards exchange their objects through the cache
// server, where they are not replicas of other objects, or store them for themselves.
package cachekinds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// SchemeGroupVersion is the group and version of the kinds that shards exchange.
var SchemeGroupVersion = schema.GroupVersion{Group: "cache.shardplane.io", Version: "v1alpha1"}

type pointerTo[T any] interface {
	*T
	client.Object
}

// Define registers T as a kind that shards exchange, and returns its resource.
func Define[T any, P pointerTo[T]](kind, plural string) client.Resource[P, *List[T, P]] {
	return DefineIn[T, P](SchemeGroupVersion, kind, plural)
}

// DefineIn is Define for kinds of another group.
func DefineIn[T any, P pointerTo[T]](gv schema.GroupVersion, kind, plural string) client.Resource[P, *List[T, P]] {
	kinds.Scheme.AddKnownTypeWithName(gv.WithKind(kind), P(new(T)))
	kinds.Scheme.AddKnownTypeWithName(gv.WithKind(kind+"List"), &List[T, P]{})
	metav1.AddToGroupVersion(kinds.Scheme, gv)
	return client.DefineResource[T, List[T, P], P, *List[T, P]](gv, plural, client.WithScheme(kinds.Scheme))
}

// List is a list of objects of one kind.
type List[T any, P pointerTo[T]] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []T `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *List[T, P]) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]T, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *P(&l.Items[i]).DeepCopyObject().(P) //nolint:forcetypeassert // it is a copy of one
	}
	return &c
}
