package subtreeusage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// TestLimitsAreEnforcedInTime holds the sum of all that is waited for between a write on one
// shard and the sums of another one: it adds up, looks again at a sum that was not known, tells
// the cache server, again after a failure, and the other one adds up. What is left of the ten
// seconds of the documentation is for the requests and the watch.
func TestLimitsAreEnforcedInTime(t *testing.T) {
	const documented, requests = 10 * time.Second, time.Second
	require.LessOrEqual(t, subtrees.Pace+unknownWait+maxBackoff+subtrees.Pace+requests, documented)
}
