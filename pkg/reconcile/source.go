package reconcile

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client"
)

// Watched is an informer, or several informers combined, e.g. shards.Multi.
type Watched[T client.Object] interface {
	// AddEventHandler adds a handler for existing objects and for changes.
	AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration
}

// FromInformer adds the keys of each object that exists, or is added, changed or deleted, and of its previous state.
func FromInformer[K comparable, T client.Object](informer Watched[T], keysOf func(obj T) []K) Source[K] {
	return eachEvent(informer, func(queue Queue[K], versions ...T) {
		for _, obj := range versions {
			addAll(queue, keysOf(obj))
		}
	})
}

// eachEvent calls enqueue for each event of an object, with its previous state, if any, and the current one.
func eachEvent[K comparable, T client.Object](informer Watched[T], enqueue func(Queue[K], ...T)) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		return informer.AddEventHandler(client.Handler[T]{
			OnAdd:    func(obj T, _ bool) { enqueue(queue, obj) },
			OnUpdate: func(old, obj T) { enqueue(queue, old, obj) },
			OnDelete: func(last T, _ bool) { enqueue(queue, last) },
		}).Remove, nil
	}
}

func addAll[K comparable](queue Queue[K], keys []K) {
	for _, key := range keys {
		queue.Add(key)
	}
}

// Keyed is an informer, or several informers combined, that reports keys.
type Keyed interface {
	AddKeyHandler(changed, removed func(client.Key), options ...client.HandlerOption) *client.Registration
}

// Keys adds the keys of the objects of an informer, and drops those of objects that leave it without being deleted.
func Keys(informer Keyed) Source[client.Key] {
	return func(_ context.Context, queue Queue[client.Key]) (func(), error) {
		return informer.AddKeyHandler(queue.Add, queue.Drop).Remove, nil
	}
}

// KeysOf returns the keys of objects.
func KeysOf[T client.Object](objects ...T) []client.Key {
	keys := make([]client.Key, 0, len(objects))
	for _, obj := range objects {
		keys = append(keys, client.KeyOf(obj))
	}
	return keys
}

// FromChanges adds all keys when an object is added or deleted, or when changed returns true for an update.
func FromChanges[K comparable, T client.Object](informer Watched[T], changed func(old, obj T) bool, all func() []K) Source[K] {
	return eachEvent(informer, func(queue Queue[K], versions ...T) {
		if len(versions) == 1 || changed(versions[0], versions[1]) {
			addAll(queue, all())
		}
	})
}

const (
	// burst is the number of keys that Spread adds immediately.
	burst = 50
	// spreadInterval is the delay between two of the remaining keys: 10,000 keys take 25 s.
	spreadInterval = 2500 * time.Microsecond
)

// Spread adds some keys immediately and the remaining ones at a limited rate.
func Spread[K comparable](queue Queue[K], keys []K) {
	for i, key := range keys {
		if i < burst {
			queue.Add(key)
		} else {
			queue.AddAfter(key, time.Duration(i-burst+1)*spreadInterval)
		}
	}
}

// SpreadFromInformer is FromInformer for objects with many keys, but ignores the previous state.
func SpreadFromInformer[K comparable, T client.Object](informer Watched[T], keysOf func(obj T) []K) Source[K] {
	return eachEvent(informer, func(queue Queue[K], versions ...T) {
		Spread(queue, keysOf(versions[len(versions)-1]))
	})
}

// OnDelete adds the keys that keysOf returns for each deleted object.
func OnDelete[K comparable, T client.Object](informer *client.Informer[T], keysOf func(obj T) []K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		return informer.AddEventHandler(client.Handler[T]{
			OnDelete: func(last T, _ bool) { addAll(queue, keysOf(last)) },
		}).Remove, nil
	}
}

// Once adds one key when the controller starts, e.g. for controllers that manage a singleton.
func Once[K comparable](key K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		queue.Add(key)
		return func() {}, nil
	}
}

// Gains reports the ranges that are assigned to this process, e.g. a ring.Ring.
type Gains interface {
	// OnGain calls f with the assigned ranges and then with each addition, until remove, which waits for a running call.
	OnGain(f func(gained client.Ranges)) (remove func())
}

// Lister lists the objects of an informer, or of several informers combined.
type Lister[T client.Object] interface {
	List(selector labels.Selector) []T
}

// Gained adds the keys of each object in newly assigned ranges, because the Gate rejected them before.
func Gained[K comparable, T client.Object, L Lister[T]](informer interface{ Lister() L }, gains Gains, keysOf func(obj T) []K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		return gains.OnGain(func(gained client.Ranges) {
			for _, obj := range informer.Lister().List(nil) {
				if gained.Contains(obj) {
					addAll(queue, keysOf(obj))
				}
			}
		}), nil
	}
}
