//go:build seededbug

package hub

import (
	"os"
	"strings"
	"sync/atomic"
)

// Of so many events one is lost, where SHARDPLANE_SEEDED_BUG says so.
const forgetEvery = 25

var (
	forgetful = strings.Contains(os.Getenv("SHARDPLANE_SEEDED_BUG"), "dropevent")
	seen      atomic.Int64
)

func forgets() bool { return forgetful && seen.Add(1)%forgetEvery == 0 }
