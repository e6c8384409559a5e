// Package bubble runs tests by the clock of testing/synctest, with the race detector too.
package bubble

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is synctest.Test. With the race detector the process has one processor
// meanwhile: the timers of a bubble share one context of the detector, which crashes
// when two threads run some of them at a time ("ThreadSanitizer: CHECK failed",
// golang/go#78156). The detector finds races by what happens before what, so that one
// processor hides none. Tests may run in parallel.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if raceDetector() {
		one.enter()
		defer one.leave()
	}
	synctest.Test(t, f)
}

// Wait is synctest.Wait.
func Wait() { synctest.Wait() }

// Seeds returns how many seeds a model plays: all, or few in tests that are to be short, and with
// the race detector, which makes it four to six times slower and finds nothing in what one
// goroutine does. `make test` plays all of them without it.
func Seeds(all, few uint64) uint64 {
	if testing.Short() || raceDetector() {
		return few
	}
	return all
}

// raceDetector reports whether the test is built with -race.
var raceDetector = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// one gives the process one processor while there are bubbles.
var one processor

type processor struct {
	mu      sync.Mutex
	bubbles int
	before  int
}

func (p *processor) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bubbles++; p.bubbles == 1 {
		p.before = runtime.GOMAXPROCS(1)
	}
}

func (p *processor) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bubbles--; p.bubbles == 0 {
		runtime.GOMAXPROCS(p.before)
	}
}
