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

// expected has the hashes of the replicas that the cache server has acknowledged, with the versions
// at which it has, or 0 where that is not known. It knows which of its buckets somebody is changing.
type expected struct {
	*digest.Table[uint64]

	mu sync.Mutex
	// working is how many keys of a bucket are being worked on, and turns how often that has begun.
	working [digest.Buckets]int
	turns   [digest.Buckets]uint64
}

func newExpected() *expected { return &expected{Table: digest.NewTable[uint64]()} }

// begin says that somebody works on the replica of an object until end is called.
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

// moment is what is expected at one time.
type moment struct {
	root digest.Root
	sums digest.Sums
	// busy are the buckets of which somebody changes replicas, or has to.
	busy  [digest.Buckets]bool
	turns [digest.Buckets]uint64
}

// now returns what is expected of the replicas, and which of them changes is in l.
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

// still reports whether nothing has happened to a bucket since.
func (m *moment) still(later *moment, bucket int) bool {
	return !m.busy[bucket] && !later.busy[bucket] && m.turns[bucket] == later.turns[bucket]
}

// expect notes what the replica of an object is now; both are nil where there is none.
func (e *expected) expect(ctx context.Context, resource replication.Resource, key client.Key, local, replica *unstructured.Unstructured) {
	text := key.String()
	if local == nil || replica == nil {
		e.Remove(text)
		return
	}
	hash, err := replication.HashReplica(text, resource.Desired(local).Object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A replica cannot be compared")
		return
	}
	e.Set(text, hash, versionNumber(replica.GetResourceVersion()))
}

// versionNumber returns a version as a number; 0 where it is none.
func versionNumber(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
