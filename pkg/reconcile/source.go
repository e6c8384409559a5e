package reconcile

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client"
)

// Watched is an informer, or a view of several, such as shards.Multi.
type Watched[T client.Object] interface {
	// AddEventHandler adds a handler that is told of what is there and of what
	// changes, until it is removed.
	AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration
}

// FromInformer feeds a queue with the keys that keysOf names for each object
// that is added, changed or deleted, starting with those that exist.
func FromInformer[K comparable, T client.Object](informer Watched[T], keysOf func(obj T) []K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		enqueue := func(obj T) {
			for _, key := range keysOf(obj) {
				queue.Add(key)
			}
		}
		return informer.AddEventHandler(client.Handler[T]{
			OnAdd: func(obj T, _ bool) { enqueue(obj) },
			OnUpdate: func(old, obj T) {
				enqueue(old)
				enqueue(obj)
			},
			OnDelete: func(last T, _ bool) { enqueue(last) },
		}).Remove, nil
	}
}

// Keyed is an informer, or a view of several, such as shards.Multi, that tells keys.
type Keyed interface {
	AddKeyHandler(changed, left func(client.Key), options ...client.HandlerOption) *client.Registration
}

// Keys feeds a queue with the keys of an informer's own objects, and drops those of objects that
// leave it, and are not deleted.
func Keys(informer Keyed) Source[client.Key] {
	return func(_ context.Context, queue Queue[client.Key]) (func(), error) {
		return informer.AddKeyHandler(queue.Add, queue.Drop).Remove, nil
	}
}

// OnDelete feeds a queue with the keys that keysOf names for each object that
// is deleted.
func OnDelete[K comparable, T client.Object](informer *client.Informer[T], keysOf func(obj T) []K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		return informer.AddEventHandler(client.Handler[T]{
			OnDelete: func(last T, _ bool) {
				for _, key := range keysOf(last) {
					queue.Add(key)
				}
			},
		}).Remove, nil
	}
}

// Once feeds a queue with one key when the controller starts, for controllers
// that look after one thing.
func Once[K comparable](key K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		queue.Add(key)
		return func() {}, nil
	}
}

// Gains tells what comes to this process, such as a ring.Ring.
type Gains interface {
	// OnGain has f called with what this process may work on, and then with what comes, one call
	// after the other, until remove is called, which waits for f.
	OnGain(f func(gained client.Ranges)) (remove func())
}

// Lister lists the objects of an informer, or of a view of several.
type Lister[T client.Object] interface {
	List(selector labels.Selector) []T
}

// Gained feeds a queue with the keys that keysOf names for each object in the ranges that
// come to this process, of an informer or of a view of several, such as shards.Multi. The Gate
// refused them before.
func Gained[K comparable, T client.Object, L Lister[T]](informer interface{ Lister() L }, gains Gains, keysOf func(obj T) []K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		return gains.OnGain(func(gained client.Ranges) {
			for _, obj := range informer.Lister().List(nil) {
				if gained.Contains(obj) {
					for _, key := range keysOf(obj) {
						queue.Add(key)
					}
				}
			}
		}), nil
	}
}
