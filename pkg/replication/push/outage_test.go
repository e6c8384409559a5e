package push

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/shardplane/shardplane/test/bubble"
)

// soonAfter is how long after a cache server is back it may not have everything yet.
const soonAfter = 6 * time.Second

// TestRecoveryAfterOutages checks that a cache server is soon up to date after an outage of any duration, even if the process
// was started meanwhile.
func TestRecoveryAfterOutages(t *testing.T) {
	for _, starts := range []bool{false, true} {
		for outage := time.Second; outage < 2*time.Minute; outage += outage / 2 {
			bubble.Test(t, func(t *testing.T) { runOutage(t, outage, starts) })
		}
	}
}

func runOutage(t *testing.T, outage time.Duration, starts bool) {
	t.Helper()
	m := newModel(t, 1, faults{})
	for range 20 {
		m.edit(m.shard)
	}
	m.start()
	defer m.end()
	m.arrives(t, time.Minute)
	m.fails(100)
	m.cache.breakWatches(false)
	if starts {
		m.stop()
	}
	replicated := slices.Sorted(maps.Keys(m.wanted()))
	m.shard.locked(func() { m.shard.remove(replicated[0]) })
	m.brief()
	m.edit(m.shard)
	if starts {
		m.start()
	}
	<-time.After(outage)
	m.fails(0)
	m.arrives(t, soonAfter)
}
