package client

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Sink receives the objects of a server, on one goroutine. It must not retain the objects, nor strings of them.
type Sink[T Object] interface {
	// Begin starts, or restarts, a full resync. Objects that were not put before End have been deleted.
	Begin()
	End()
	// Put is called with a new or changed object, Delete with a deleted one.
	Put(obj T)
	Delete(last T)
}

// Follower is an informer without a store, for consumers that need little of many objects. Use Resource.Follower.
type Follower[T Object] struct {
	connection
	sink Sink[T]
}

// Follower returns a follower of a resource. The name is used in logs.
func (r Resource[T, L]) Follower(scope Scope, name string, sink Sink[T]) *Follower[T] {
	f, err := newFollower(scope, name, sink, r.sourceIn(""))
	utilruntime.Must(err)
	return f
}

// NewDynamicFollower returns a follower of a resource without Go types.
func NewDynamicFollower(scope Scope, gvr schema.GroupVersionResource, name string, sink Sink[*unstructured.Unstructured]) (*Follower[*unstructured.Unstructured], error) {
	return newFollower(scope, name, sink, dynamicSource(gvr, ""))
}

func newFollower[T Object](scope Scope, name string, sink Sink[T], source sourceAt) (*Follower[T], error) {
	at, err := source(scope)
	if err != nil {
		return nil, err
	}
	return &Follower[T]{newConnection(name, at), sink}, nil
}

// Resume makes a follower start at a resourceVersion. The sink must have received all events up to it in an
// earlier process, and the follower must not have run. It is then synced, but not Current.
func (f *Follower[T]) Resume(resourceVersion string) {
	f.setResourceVersion(resourceVersion)
	f.markSynced()
}

// Run follows the resource until ctx is done. It fails only if the follower runs already.
func (f *Follower[T]) Run(ctx context.Context) error {
	end, err := f.begin()
	if err != nil {
		return err
	}
	defer end()
	f.follow(ctx, followerSink[T]{f.sink})
	return nil
}

type followerSink[T Object] struct{ sink Sink[T] }

func (s followerSink[T]) begin() { s.sink.Begin() }
func (s followerSink[T]) end()   { s.sink.End() }
func (s followerSink[T]) put(_ context.Context, received runtime.Object) error {
	return s.typed(received, s.sink.Put)
}
func (s followerSink[T]) delete(_ context.Context, received runtime.Object) error {
	return s.typed(received, s.sink.Delete)
}

func (s followerSink[T]) typed(received runtime.Object, f func(T)) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	f(obj)
	return nil
}
