//go:build seededbug

package hub

import (
	"os"
	"strings"
	"sync/atomic"
)

// Of so many events of ConfigMaps one is lost, where SHARDPLANE_SEEDED_BUG says
// so. The server itself does not depend on these.
const (
	forgetEvery = 25
	forgotten   = "configmaps"
)

var (
	forgetful = strings.Contains(os.Getenv("SHARDPLANE_SEEDED_BUG"), "dropevent")
	seen      atomic.Int64
)

func (h *Hub) forgets() bool {
	return forgetful && h.cfg.Resource.Resource == forgotten && seen.Add(1)%forgetEvery == 0
}
