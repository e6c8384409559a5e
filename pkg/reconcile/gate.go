package reconcile

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client"
)

// Gate says what this process may work on now, where several divide the work, as a ring.Ring
// does.
type Gate interface {
	// Begin begins work on what has a hash. If it may not, ok is false. Otherwise the work has
	// to end soon after the context that it returns has, and end is called then.
	Begin(ctx context.Context, hash uint64) (work context.Context, end func(), ok bool)
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

// hash returns by what the Gate knows a key.
func (c *Controller[K]) hash(key K) uint64 {
	if c.config.Hash != nil {
		return c.config.Hash(key)
	}
	cluster, _ := clusterOf(key)
	return client.HashOf(cluster.String())
}
