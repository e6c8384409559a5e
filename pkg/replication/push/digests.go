package push

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// digests are those that the cache server has of the shard's replicas.
type digests struct {
	config Config
	// kicked gets something when digests are to be compared soon.
	kicked chan struct{}
	// breaks counts what may have replaced the data of the cache server, and checked how many of
	// those were looked into.
	breaks, checked atomic.Int64
}

func newDigests(config Config) *digests {
	return &digests{config: config, kicked: make(chan struct{}, 1)}
}

// soon has digests compared soon.
func (d *digests) soon() {
	select {
	case d.kicked <- struct{}{}:
	default:
	}
}

// broken says that the cache server may have been replaced by another one, or by itself with other
// data. Until that was looked into, doubtful is true.
func (d *digests) broken() {
	d.breaks.Add(1)
	d.soon()
}

func (d *digests) doubtful() bool { return d.breaks.Load() != d.checked.Load() }

// ask asks for the digests of all resources, of one, or of a bucket of that.
func (d *digests) ask(ctx context.Context, resource string, bucket ...int) (*digest.Answer, error) {
	return digest.Fetch(ctx, d.config.replicas(), resource, bucket...)
}

// jitter spreads the requests of many shards.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4) }

// rootOf returns what an answer says of a resource.
func rootOf(answer *digest.Answer, resource string) digest.Root {
	root, ok := answer.Resources[resource]
	if !ok {
		root.Digest = new(digest.Sums).Digest()
	}
	return root
}
