package push

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
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

func (d *digests) kick() { signal(d.kicked) }

// signal wakes the reader of a channel with a buffer.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
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

// expected contains the hashes of the replicas that the cache server has acknowledged, and their resource versions, or 0
// if the version is unknown.
type expected struct {
	*digest.Table[uint64]

	mu sync.Mutex
	// working counts the keys of a bucket that are being replicated, and turns the starts of these.
	working [digest.Buckets]int
	turns   [digest.Buckets]uint64
}

func newExpected() *expected { return &expected{Table: digest.NewTable[uint64]()} }

// begin marks the bucket of a key as busy until end is called.
func (e *expected) begin(key client.Key) (end func()) {
	bucket := digest.BucketOf(key.String())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.working[bucket]++
	e.turns[bucket]++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.working[bucket]--
	}
}

// moment is a snapshot of expected.
type moment struct {
	root digest.Root
	sums digest.Sums
	// busy are the buckets with pending or running changes.
	busy  [digest.Buckets]bool
	turns [digest.Buckets]uint64
}

// now returns a snapshot of the expected replicas and of the changes in l.
func (e *expected) now(l *ledger) *moment {
	e.mu.Lock()
	m := &moment{root: e.Root(), sums: e.Sums(), turns: e.turns}
	for bucket, n := range e.working {
		m.busy[bucket] = n > 0
	}
	e.mu.Unlock()
	for _, key := range l.pending() {
		m.busy[digest.BucketOf(key.String())] = true
	}
	return m
}

// still reports whether a bucket has not changed between two snapshots.
func (m *moment) still(later *moment, bucket int) bool {
	return !m.busy[bucket] && !later.busy[bucket] && m.turns[bucket] == later.turns[bucket]
}

// expect records the result of a write. Both objects are nil if the replica was deleted.
func (e *expected) expect(ctx context.Context, resource replication.Resource, key client.Key, local, replica *unstructured.Unstructured) {
	text := key.String()
	if local == nil || replica == nil {
		e.Remove(text)
		return
	}
	hash, err := replication.HashReplica(text, resource.Desired(local).Object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to hash a replica")
		return
	}
	version, err := strconv.ParseUint(replica.GetResourceVersion(), 10, 64)
	if err != nil {
		version = 0 // unknown
	}
	e.Set(text, hash, version)
}
