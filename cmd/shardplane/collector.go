package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// heapGrowth is how much a server's heap grows at least, in bytes, before
	// garbage is collected, unless a person has set GOGC. While it is collected,
	// a quarter of the cores and more is missing, and requests take several
	// times as long. Go collects whenever the heap has doubled: many times a
	// second, where it is small and requests are many.
	heapGrowth = 256 << 20
	// leastGOGC and mostGOGC bound what that makes of GOGC.
	leastGOGC, mostGOGC = 100, 1000

	liveHeapMetric = "/gc/heap/live:bytes"
)

// cycle is garbage as soon as it is made: its finalizer runs after the next
// collection.
type cycle struct{ gogc int }

// tuneCollector adapts GOGC to the heap after each collection, for as long as
// the process lives.
func tuneCollector() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	nextCycle(leastGOGC)
}

func nextCycle(gogc int) {
	runtime.SetFinalizer(&cycle{gogc}, func(c *cycle) {
		live := []metrics.Sample{{Name: liveHeapMetric}}
		metrics.Read(live)
		// Setting it stops the world for a moment; the heap seldom changes.
		if want := gogcFor(live[0].Value.Uint64()); want > c.gogc+c.gogc/8 || want < c.gogc-c.gogc/8 {
			debug.SetGCPercent(want)
			c.gogc = want
		}
		nextCycle(c.gogc)
	})
}

// gogcFor returns the GOGC with which a heap with that many live bytes grows by
// heapGrowth, within bounds.
func gogcFor(live uint64) int {
	percent := 100 * heapGrowth / max(live, 1)
	return int(min(max(percent, leastGOGC), mostGOGC)) //nolint:gosec // at most mostGOGC
}
