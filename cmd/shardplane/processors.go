package main

import (
	"os"
	"runtime"
)

// leastProcessors is how many threads of a server run Go code at a time at least, also on
// fewer cores. Go lets what computes go on for 10 ms before it is another goroutine's turn, and
// a request waits for that at each of its hops when all threads compute. The kernel lets a thread
// that wakes up run at once, and shares the cores by the time that threads have had. More
// threads than these wait for the threads that collect garbage, of which there are as many as
// there are threads that have nothing else to do.
const leastProcessors = 4

// setProcessors sets how many threads run Go code at a time. Where that is to be what it is it sets
// nothing: what is set, Go no longer adapts when a quota changes.
func setProcessors() {
	if _, set := os.LookupEnv("GOMAXPROCS"); set {
		return
	}
	now := runtime.GOMAXPROCS(0)
	if n := processorsOn(runtime.NumCPU(), now); n != now {
		runtime.GOMAXPROCS(n)
	}
}

// processorsOn returns how many threads run Go code at a time on a machine with cores, of which
// Go uses so many. Where those are fewer, the process has a quota of processor time: with more
// threads it would use that up sooner, and then stand still until the quota's period ends.
func processorsOn(cores, used int) int {
	if used < cores {
		return used
	}
	return max(used, leastProcessors)
}
