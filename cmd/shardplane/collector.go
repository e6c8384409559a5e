package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// defaultPercent is the default GOGC: a collection starts when the heap has doubled.
	defaultPercent = 100
	// largeHeapPercent is the GOGC of a large heap.
	largeHeapPercent = 50
	// defaultGarbage is the amount of garbage above which GOGC is reduced.
	defaultGarbage = 256 << 20
	// idlePercent is the GOGC of a process that allocates so little that collections are idleInterval apart.
	idlePercent  = 20
	idleInterval = 5 * time.Second
	// startupPercent is the GOGC during startupTime, which ends with the release of unused memory. Measured for a
	// development cluster: 20 needs the same idle memory, but starts 1 s later; 60 needs 14% less processor time for
	// the start, but 12 MB more idle memory, because the garbage of the startup fragments the heap.
	startupPercent = 30
	startupTime    = 3 * time.Second
)

// collector adapts GOGC to the size of the heap and to the rate of allocations. The resident memory of a process is
// its largest heap, by default twice the live heap. Above some hundred megabytes, an additional collection costs
// less than that memory. A collection per idleInterval costs less than 1% of a processor.
type collector struct {
	percent int
	last    time.Time
}

// paceCollector adjusts GOGC until the process ends.
func paceCollector() {
	if managesGOGC() {
		debug.SetGCPercent(startupPercent)
		time.AfterFunc(startupTime, startCollector)
	}
}

func startCollector() {
	debug.SetGCPercent(idlePercent)
	debug.FreeOSMemory()
	(&collector{percent: idlePercent, last: time.Now()}).watch()
}

// managesGOGC reports whether neither variable is set. An empty one selects the default of Go.
func managesGOGC() bool {
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
	percent := percentOf(sample[0].Value.Uint64(), c.percent, now.Sub(c.last))
	c.last = now
	// SetGCPercent stops the world, so small differences are ignored.
	if max(percent-c.percent, c.percent-percent) >= 5 {
		debug.SetGCPercent(percent)
		c.percent = percent
	}
}

// percentOf returns the GOGC for a live heap, whose last two collections were an interval apart with a GOGC of former.
// The interval is proportional to GOGC, until the runtime forces a collection after two minutes.
func percentOf(live uint64, former int, interval time.Duration) int {
	highest := max(largeHeapPercent, defaultPercent*defaultGarbage/max(live, defaultGarbage))
	ideal := float64(former) * float64(idleInterval) / float64(max(interval, time.Millisecond))
	return int(min(float64(highest), max(idlePercent, ideal)))
}

// minProcessors is the minimum GOMAXPROCS of a server, even on fewer cores. Go lets a goroutine compute for 10 ms
// before it runs another one, but the kernel runs a thread immediately when it wakes up. More threads are not
// better, because more of them collect garbage, too.
const minProcessors = 4

// setProcessors sets GOMAXPROCS, if necessary, because Go adapts only the default to a changed quota.
func setProcessors() {
	if _, set := os.LookupEnv("GOMAXPROCS"); set {
		return
	}
	now := runtime.GOMAXPROCS(0)
	if n := processorsOn(runtime.NumCPU(), now); n != now {
		runtime.GOMAXPROCS(n)
	}
}

// processorsOn returns GOMAXPROCS for a number of cores, given Go's default. If the default is lower, the process has a
// CPU quota: more threads would use it up earlier and then stall until the period ends.
func processorsOn(cores, used int) int {
	if used < cores {
		return used
	}
	return max(used, minProcessors)
}
