package noisyneighbors

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireHeapGrowth waits until the heap has grown by less than the given bytes. It ignores
// temporary objects, but not leaks.
func requireHeapGrowth(t *testing.T, before uint64, bytes int64, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return int64(heap())-int64(before) < bytes }, testTimeout/2, 10*tick, "the heap has grown by more than %d: %s", bytes, what)
}

// heap returns the bytes of live objects in this process, or 0 with -latency.
func heap() uint64 {
	if *latencyFlag {
		return 0
	}
	var stats runtime.MemStats
	for range 3 { // finalizers and weak pointers need several cycles
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// peakWhile returns the maximum growth of the heap while f runs, or 0 with -latency.
func peakWhile(f func()) (peak uint64) {
	if *latencyFlag {
		f()
		return 0
	}
	before := heap()
	defer debug.SetGCPercent(debug.SetGCPercent(5)) // limits the garbage
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		peak = max(peak, stats.HeapAlloc-min(before, stats.HeapAlloc))
		select {
		case <-done:
			return peak
		case <-time.After(time.Millisecond):
		}
	}
}
