package reconcile

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// HandsOver divides the work among processes, such as a ring.Ring, and tells what is left to do
// of what moves.
type HandsOver interface {
	// HandOver has left asked what is left to do in ranges that go, in which nothing runs any
	// more, and takeOver called with what this process may work on, and then with what comes:
	// left is nil if all of it is to be worked on.
	HandOver(name string, left func(ranges client.Ranges) (client.Left, bool), takeOver func(gained client.Ranges, left *client.Left)) (remove func())
}

// HandedOver feeds a queue as Keys and Gained do together, for a controller whose Gate is the
// same, and that works on nothing but the objects of this informer, by logical cluster. Of what
// another process hands over it takes what that one has left to do, and what has changed since,
// deletions among it, instead of all objects. name is that of the source among all that the
// processes hand over, such as the controller's.
func HandedOver[T client.Object](name string, informer *client.Informer[T], from HandsOver) Source[client.Key] {
	return func(ctx context.Context, queue Queue[client.Key]) (func(), error) {
		tracked, ok := queue.(*feed[client.Key])
		if !ok {
			return nil, fmt.Errorf("%s is handed over with the queue of a Controller only, not with %T", name, queue)
		}
		tracked.track()
		h := &handover[T]{name, informer, tracked}
		changes := informer.AddKeyHandler(queue.Add, queue.Drop)
		ctx, cancel := context.WithCancel(ctx)
		remove := from.HandOver(name, h.left, func(gained client.Ranges, left *client.Left) { h.takeOver(ctx, gained, left) })
		return func() {
			cancel()
			remove()
			changes.Remove()
		}, nil
	}
}

type handover[T client.Object] struct {
	name     string
	informer *client.Informer[T]
	queue    *feed[client.Key]
}

// in returns whether a key is in ranges.
func in(ranges client.Ranges) func(client.Key) bool {
	return func(key client.Key) bool { return ranges.ContainsCluster(key.Cluster) }
}

// left returns what is left to do in ranges. The version comes first: what the informer tells
// after it may be in the queue, too.
func (h *handover[T]) left(ranges client.Ranges) (client.Left, bool) {
	version, ok := h.informer.Reached(ranges)
	if !ok || ranges.Key() != client.ByCluster {
		return client.Left{}, false
	}
	return client.Left{Version: version, Keys: h.queue.left(in(ranges))}, true
}

// takeOver enqueues what is to do in ranges.
func (h *handover[T]) takeOver(ctx context.Context, gained client.Ranges, left *client.Left) {
	refused := h.queue.takeRefused(in(gained))
	if left != nil {
		for _, key := range left.Keys {
			h.queue.Add(key)
		}
		err := h.informer.ChangedSince(ctx, left.Version, gained, func(obj T) { h.queue.Add(h.informer.KeyOf(obj)) })
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Info("Works on all that another replica has handed over: what has changed since cannot be had", "source", h.name, "err", err)
	}
	for _, key := range refused {
		h.queue.Add(key)
	}
	for _, obj := range h.informer.Lister().List(nil) {
		if gained.Contains(obj) {
			h.queue.Add(h.informer.KeyOf(obj))
		}
	}
}
