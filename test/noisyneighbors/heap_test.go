package noisyneighbors

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/heap"
)

// requireHeapGrowth waits until the heap has grown by less than the given bytes. It ignores
// temporary objects, but not leaks.
func requireHeapGrowth(t *testing.T, before, bytes int64, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return inUse()-before < bytes }, testTimeout/2, 10*tick, "the heap has grown by more than %d: %s", bytes, what)
}

// inUse is heap.InUse, or 0 with -latency, because the servers are other processes.
func inUse() int64 {
	if *latencyFlag {
		return 0
	}
	return heap.InUse()
}

// peakWhile returns the maximum growth of the heap while f runs, or 0 with -latency or -short.
func peakWhile(f func()) (peak uint64) {
	if *latencyFlag || testing.Short() {
		f()
		return 0
	}
	before := uint64(heap.InUse())                  //nolint:gosec // not negative
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
