package main

import (
	"os"
	"runtime"
)

// leastProcessors is the minimum GOMAXPROCS of a server, even on fewer cores. Go lets a goroutine compute for 10 ms before
// it runs another one, and a request waits for that at each hop if all threads compute. The kernel, in contrast, runs a
// thread immediately when it wakes up. More threads are not better, because the number of threads that collect garbage
// increases, too.
const leastProcessors = 4

// setProcessors sets GOMAXPROCS. It does nothing if the value is right, because Go adapts only the default to a changed
// quota.
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
	return max(used, leastProcessors)
}
