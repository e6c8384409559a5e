package push

import (
	"context"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

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
	e.Set(text, hash, versionNumber(replica.GetResourceVersion()))
}

func versionNumber(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
