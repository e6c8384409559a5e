package subtreeusage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// TestLimitsAreEnforcedInTime: the sum of all delays between a write on one shard and its effect on another one leaves some of the
// documented ten seconds for requests and the watch.
func TestLimitsAreEnforcedInTime(t *testing.T) {
	const documented, requests = 10 * time.Second, time.Second
	require.LessOrEqual(t, subtrees.Pace+unknownWait+maxBackoff+subtrees.Pace+requests, documented)
}
