package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usualPercent is the default GOGC: a collection starts when the heap has doubled.
	usualPercent = 100
	// largePercent is the GOGC of a large heap.
	largePercent = 50
	// usualGarbage is the amount of garbage above which GOGC is reduced.
	usualGarbage = 256 << 20
	// idlePercent is the GOGC of a process that allocates so little that collections are idleInterval apart.
	idlePercent  = 20
	idleInterval = 5 * time.Second
	// The first collections use idlePercent while the heap is smaller than smallHeap, which is collected in about 20 ms.
	// An empty server needs about 40 to start. With the default GOGC, the garbage of the startup fragments the heap, and
	// an idle shard needs 15 MB more.
	startupCollections = 50
	smallHeap          = 64 << 20
)

// collector adapts GOGC to the size of the heap and to the rate of allocations. The resident memory of a process is its
// largest heap, which with the default GOGC is twice the live heap. For a heap of some hundred megabytes, an additional
// collection costs less than that memory. An idle process may collect once per idleInterval, which costs less than 1% of
// a processor.
type collector struct {
	collections int
	percent     int
	last        time.Time
}

// paceCollector adjusts GOGC until the process ends.
func paceCollector() {
	if collectorIsOurs() {
		newCollector().watch()
	}
}

func newCollector() *collector {
	debug.SetGCPercent(idlePercent)
	return &collector{percent: idlePercent, last: time.Now()}
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
	now := time.Now()
	percent := percentOf(sample[0].Value.Uint64(), c.percent, now.Sub(c.last), c.collections)
	c.last = now
	c.collections++
	// SetGCPercent stops the world, so small differences are ignored.
	if max(percent-c.percent, c.percent-percent) >= 5 {
		debug.SetGCPercent(percent)
		c.percent = percent
	}
}

// percentOf returns the GOGC for a live heap, whose last two collections were an interval apart with a GOGC of former.
// The interval is proportional to GOGC, until the runtime forces a collection after two minutes.
func percentOf(live uint64, former int, interval time.Duration, collections int) int {
	if live < smallHeap && collections < startupCollections {
		return idlePercent
	}
	highest := max(largePercent, usualPercent*usualGarbage/max(live, usualGarbage))
	ideal := float64(former) * float64(idleInterval) / float64(max(interval, time.Millisecond))
	return int(min(float64(highest), max(idlePercent, ideal)))
}
