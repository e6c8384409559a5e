package client

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Sink is told what a server has, on one goroutine. It must not keep the objects: what it
// needs of them it copies, strings, too.
type Sink[T Object] interface {
	// Begin says that all objects are put that there are, until End: others have gone. If
	// that breaks off, it begins again.
	Begin()
	End()
	// Put is told of an object, or of another state of it, and Delete of one that has gone.
	Put(obj T)
	Delete(last T)
}

// Follower is an Informer that keeps no objects, for who keeps little of many. Make one with
// Resource.Follower.
type Follower[T Object] struct {
	connection
	sink Sink[T]
}

// Follower returns a follower of a resource, whose name is for logs.
func (r Resource[T, L]) Follower(scope Scope, name string, sink Sink[T]) *Follower[T] {
	r.identity = r.identity.fresh()
	c := r.In(scope)
	list := func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, opts) }
	return &Follower[T]{newConnection(name, listerWatcher{list: list, watch: c.Watch}), sink}
}

// NewDynamicFollower returns a follower of a resource without Go types.
func NewDynamicFollower(scope Scope, gvr schema.GroupVersionResource, name string, sink Sink[*unstructured.Unstructured]) (*Follower[*unstructured.Unstructured], error) {
	clients, err := scope.Dynamic()
	if err != nil {
		return nil, err
	}
	c := clients.Resource(gvr)
	return &Follower[*unstructured.Unstructured]{newConnection(name, sourceOf(c.List, c.Watch)), sink}, nil
}

// NewMetadataFollower returns a follower of a resource's metadata.
func NewMetadataFollower(scope Scope, gvr schema.GroupVersionResource, name string, sink Sink[*metav1.PartialObjectMetadata]) (*Follower[*metav1.PartialObjectMetadata], error) {
	clients, err := scope.Metadata()
	if err != nil {
		return nil, err
	}
	c := clients.Resource(gvr)
	return &Follower[*metav1.PartialObjectMetadata]{newConnection(name, sourceOf(c.List, c.Watch)), sink}, nil
}

// Resume has a follower that does not run yet begin at a resourceVersion up to which the sink
// has been told all, in an earlier process: synced, but not Current.
func (f *Follower[T]) Resume(resourceVersion string) {
	f.setResourceVersion(resourceVersion)
	f.syncedOnce.Do(func() { close(f.synced) })
}

// Run follows the resource until ctx is done. It fails only if the follower runs already.
func (f *Follower[T]) Run(ctx context.Context) error { return f.run(ctx, followerSink[T]{f.sink}) }

// followerSink has a Sink be told objects of its type.
type followerSink[T Object] struct{ Sink[T] }

func (s followerSink[T]) begin() { s.Begin() }
func (s followerSink[T]) end()   { s.End() }

func (s followerSink[T]) put(_ context.Context, received runtime.Object) error {
	return s.typed(received, s.Put)
}

func (s followerSink[T]) gone(_ context.Context, received runtime.Object) error {
	return s.typed(received, s.Delete)
}

func (s followerSink[T]) typed(received runtime.Object, f func(T)) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	f(obj)
	return nil
}
