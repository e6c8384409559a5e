package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPercentOf(t *testing.T) {
	for live, percent := range map[uint64]int{
		0: 100, 1 << 20: 100, 256 << 20: 100, 257 << 20: 99, 384 << 20: 66, 512 << 20: 50, 100 << 30: 50,
	} {
		require.Equal(t, percent, percentOf(live), "%d MiB", live>>20)
	}
}

// TestCollectorFollowsTheHeap checks that GOGC follows the live heap.
func TestCollectorFollowsTheHeap(t *testing.T) {
	before := debug.SetGCPercent(usualPercent)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	(&collector{percent: usualPercent}).watch()
	now := func(percent uint64) func() bool {
		return func() bool {
			runtime.GC()
			sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
			metrics.Read(sample)
			return sample[0].Value.Uint64() == percent
		}
	}
	ballast := make([]byte, 600<<20) // of which no page is touched
	require.Eventually(t, now(largePercent), time.Minute, time.Millisecond)
	runtime.KeepAlive(ballast)
	require.Eventually(t, now(usualPercent), time.Minute, time.Millisecond)
}

// TestCollectorLeavesWhatIsSet checks that GOGC in the environment is not changed.
func TestCollectorLeavesWhatIsSet(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "")
			require.False(t, collectorIsOurs())
		})
	}
}
