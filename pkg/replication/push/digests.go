package push

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// digests reads the digests of the shard's replicas on the cache server.
type digests struct {
	config Config
	// kicked is signaled to compare digests soon.
	kicked chan struct{}
	// breaks counts the events after which the cache server may contain other data, and checked those that have been
	// checked.
	breaks, checked atomic.Int64
}

func newDigests(config Config) *digests {
	return &digests{config: config, kicked: make(chan struct{}, 1)}
}

func (d *digests) kick() {
	select {
	case d.kicked <- struct{}{}:
	default:
	}
}

// disconnected is called if the cache server may have been replaced, or may contain other data. uncertain is true until that
// has been checked.
func (d *digests) disconnected() {
	d.breaks.Add(1)
	d.kick()
}

func (d *digests) uncertain() bool { return d.breaks.Load() != d.checked.Load() }

// fetch requests the digests of all resources, of one resource, or of one of its buckets.
func (d *digests) fetch(ctx context.Context, resource string, bucket ...int) (*digest.Response, error) {
	return digest.Fetch(ctx, d.config.replicas(), resource, bucket...)
}

// jitter spreads the requests of many shards.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4) }

func rootOf(response *digest.Response, resource string) digest.Root {
	root, ok := response.Resources[resource]
	if !ok {
		root.Digest = new(digest.Sums).Digest()
	}
	return root
}
