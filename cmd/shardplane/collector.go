package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// usualPercent is the default GOGC: a collection starts when the heap has doubled.
	usualPercent = 100
	// largePercent is the GOGC of a large heap.
	largePercent = 50
	// usualGarbage is the amount of garbage above which GOGC is reduced.
	usualGarbage = 256 << 20
)

// collector reduces GOGC for large heaps. The resident memory of a process is its largest heap, which with the default
// GOGC is twice the live heap. For a heap of some hundred megabytes, an additional collection costs less than that
// memory.
type collector struct{ percent int }

// paceCollector adjusts GOGC until the process ends.
func paceCollector() {
	if collectorIsOurs() {
		(&collector{percent: usualPercent}).watch()
	}
}

// collectorIsOurs reports whether the environment does not configure the garbage collector. An empty variable is the
// default.
func collectorIsOurs() bool {
	_, percent := os.LookupEnv("GOGC")
	_, limit := os.LookupEnv("GOMEMLIMIT")
	return !percent && !limit
}

// watch adjusts GOGC after each collection. The next one frees the sentinel object.
func (c *collector) watch() {
	runtime.AddCleanup(&struct{ _ *collector }{}, func(c *collector) {
		c.adjust()
		c.watch()
	}, c)
}

func (c *collector) adjust() {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	// SetGCPercent stops the world, so small differences are ignored.
	if percent := percentOf(sample[0].Value.Uint64()); percent-c.percent >= 5 || c.percent-percent >= 5 {
		debug.SetGCPercent(percent)
		c.percent = percent
	}
}

// percentOf returns the GOGC for a live heap.
func percentOf(live uint64) int {
	if live <= usualGarbage {
		return usualPercent
	}
	return max(largePercent, int(usualPercent*usualGarbage/live)) //nolint:gosec // at most usualPercent
}
