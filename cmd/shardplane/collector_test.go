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
	const mebi = 1 << 20
	for name, c := range map[string]struct {
		live     uint64
		former   int
		interval time.Duration
		want     int
	}{
		"busy":                            {live: 10 * mebi, former: 20, interval: time.Millisecond, want: 100},
		"busy, two collections at a time": {live: 10 * mebi, former: 20, want: 100},
		"less busy":                       {live: 10 * mebi, former: 100, interval: 10 * time.Second, want: 50},
		"balanced":                        {live: 10 * mebi, former: 50, interval: 5 * time.Second, want: 50},
		"idle":                            {live: 10 * mebi, former: 100, interval: 2 * time.Minute, want: 20},
		"busy with 256 MiB":               {live: 256 * mebi, former: 100, interval: time.Second, want: 100},
		"busy with 384 MiB":               {live: 384 * mebi, former: 100, interval: time.Second, want: 66},
		"busy with 100 GiB":               {live: 100 << 30, former: 100, interval: time.Second, want: 50},
		"idle with 100 GiB":               {live: 100 << 30, former: 50, interval: 2 * time.Minute, want: 20},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, percentOf(c.live, c.former, c.interval))
		})
	}
}

// TestCollectorFollowsTheHeap checks that GOGC follows the live heap of a process that collects all the time.
func TestCollectorFollowsTheHeap(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(defaultPercent) })
	startCollector()
	now := func(percent uint64) func() bool {
		return func() bool {
			runtime.GC()
			sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
			metrics.Read(sample)
			return sample[0].Value.Uint64() == percent
		}
	}
	require.Eventually(t, now(defaultPercent), time.Minute, time.Millisecond)
	ballast := make([]byte, 600<<20) // of which no page is touched
	require.Eventually(t, now(largeHeapPercent), time.Minute, time.Millisecond)
	runtime.KeepAlive(ballast)
	require.Eventually(t, now(defaultPercent), time.Minute, time.Millisecond)
}

// TestCollectorRetainsConfiguration checks that GOGC or GOMEMLIMIT in the environment disables automatic changes of GOGC.
func TestCollectorRetainsConfiguration(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "")
			require.False(t, managesGOGC())
		})
	}
}
