package push

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// TestChangedBucketsAreNotCompared checks that a bucket is only compared if it has not changed between two snapshots.
func TestChangedBucketsAreNotCompared(t *testing.T) {
	s := &session{ledger: newLedger(), expected: &digest.Table[uint64]{}}
	key := client.Key{Cluster: "root", Name: "a"}
	bucket, other := digest.BucketOf(key.String()), (digest.BucketOf(key.String())+1)%digest.Buckets
	still := func(between func()) bool {
		t.Helper()
		before := s.ledger.now(s.expected)
		between()
		after := s.ledger.now(s.expected)
		require.True(t, before.still(after, other))
		return before.still(after, bucket)
	}
	require.True(t, still(func() {}))
	var end func()
	written := func() {
		_, end = s.ledger.begin(key)
		end()
	}
	require.False(t, still(written), "a bucket that was written must not be compared")
	require.False(t, still(func() { _, end = s.ledger.begin(key) }))
	require.False(t, still(func() { end() }))
	require.True(t, still(func() {}))
	require.False(t, still(func() { s.ledger.recordChange(key, false) }), "a bucket with pending changes must not be compared")
	require.False(t, still(func() {}))
	_, end = s.ledger.begin(key)
	s.ledger.done(key)
	end()
	require.True(t, still(func() {}))
}
