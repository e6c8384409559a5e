package apibinding

import (
	"context"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// atOnce is how many bindings follow a change of their export at once.
	atOnce = 50
	// followInterval is the time between two of the others: 10,000 have followed in 25 s,
	// and leave the shard to those who have nothing to do with it meanwhile.
	followInterval = 2500 * time.Microsecond
)

// following feeds a queue with the bindings that go by an object when it changes: with
// many of them one after the other.
func following[T client.Object](informer reconcile.Watched[T], bindings func(T) []client.Key) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		enqueue := func(obj T) { spread(queue, bindings(obj)) }
		return informer.AddEventHandler(client.Handler[T]{
			OnAdd:    func(obj T, _ bool) { enqueue(obj) },
			OnUpdate: func(_, obj T) { enqueue(obj) },
			OnDelete: func(last T, _ bool) { enqueue(last) },
		}).Remove, nil
	}
}

// spread puts some bindings into the queue now, and the others one after the other.
func spread(queue reconcile.Queue[client.Key], keys []client.Key) {
	for i, key := range keys {
		if i < atOnce {
			queue.Add(key)
		} else {
			queue.AddAfter(key, time.Duration(i-atOnce+1)*followInterval)
		}
	}
}
