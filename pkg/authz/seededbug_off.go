//go:build !seededbug

package authz

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
)

// A build with the tag seededbug tells strangers what exists on purpose, so that
// test/isolation can show that it would notice. Here nothing happens.

func seedReason(context.Context, logicalcluster.Name, FindLogicalCluster) string {
	return NotPermittedReason
}
