//go:build seededbug

package authz

import (
	"context"
	"os"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

// talkative says whether SHARDPLANE_SEEDED_BUG has tells in it: who may not enter
// a logical cluster is then told whether it exists.
var talkative = strings.Contains(os.Getenv("SHARDPLANE_SEEDED_BUG"), "tells")

func seedReason(ctx context.Context, name logicalcluster.Name, find FindLogicalCluster) string {
	if talkative {
		if lc, err := find(ctx, name); err == nil && lc == nil {
			return NotPermittedReason + ", and there is none"
		}
	}
	return NotPermittedReason
}
