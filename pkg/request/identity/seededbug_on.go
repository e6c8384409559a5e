//go:build seededbug

package identity

import (
	"os"
	"strings"
)

// forgetful says whether SHARDPLANE_SEEDED_BUG has namesake in it: service
// accounts are then themselves in every logical cluster.
var forgetful = strings.Contains(os.Getenv("SHARDPLANE_SEEDED_BUG"), "namesake")

func forgetsHome() bool { return forgetful }
