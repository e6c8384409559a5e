package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// usualPercent is Go's own GOGC: garbage is collected when the heap has doubled.
	usualPercent = 100
	// largePercent is what remains of it in a large heap.
	largePercent = 50
	// usualGarbage is how much garbage there may be before less than usualPercent of the
	// heap is allowed.
	usualGarbage = 256 << 20
)

// collector has garbage collected earlier in large heaps. What a process has resident is its
// heap at its largest, since objects that stay lie between those that go: with Go's own
// setting that is twice of what it holds. In a heap of some hundred megabytes a collection
// more costs little beside what the memory costs.
type collector struct{ percent int }

// paceCollector paces the collection of garbage for as long as the process runs.
func paceCollector() {
	if collectorIsOurs() {
		(&collector{percent: usualPercent}).watch()
	}
}

// collectorIsOurs reports whether whoever has started the process has not said in its
// environment how garbage is to be collected. What is there and empty is Go's default.
func collectorIsOurs() bool {
	_, percent := os.LookupEnv("GOGC")
	_, limit := os.LookupEnv("GOMEMLIMIT")
	return !percent && !limit
}

// watch looks at the heap after each collection: the next one takes what nobody holds.
func (c *collector) watch() {
	runtime.AddCleanup(&struct{ _ *collector }{}, func(c *collector) {
		c.adjust()
		c.watch()
	}, c)
}

func (c *collector) adjust() {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	// It stops the world, so only for a difference that counts.
	if percent := percentOf(sample[0].Value.Uint64()); percent-c.percent >= 5 || c.percent-percent >= 5 {
		debug.SetGCPercent(percent)
		c.percent = percent
	}
}

// percentOf returns by how much a heap may grow before its garbage is collected.
func percentOf(live uint64) int {
	if live <= usualGarbage {
		return usualPercent
	}
	return max(largePercent, int(usualPercent*usualGarbage/live)) //nolint:gosec // at most usualPercent
}
