// Package bubble runs tests with the fake clock of testing/synctest, also with the race detector.
package bubble

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is synctest.Test. With the race detector, the process has one processor in the
// meantime, because the timers of a bubble share one context of the detector, which
// crashes if two threads run timers concurrently ("ThreadSanitizer: CHECK failed",
// golang/go#78156). One processor hides no races, because the detector compares the
// order of synchronization. Tests may run in parallel.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if RaceDetector() {
		one.enter()
		defer one.leave()
	}
	synctest.Test(t, f)
}

// Wait is synctest.Wait.
func Wait() { synctest.Wait() }

// Seeds returns the number of seeds of a model: few in short tests and with the race detector,
// otherwise all. Models have one goroutine, so the detector finds nothing in them, and makes them four
// to six times slower.
func Seeds(all, few uint64) uint64 {
	if testing.Short() || RaceDetector() {
		return few
	}
	return all
}

// RaceDetector reports whether the test is built with -race.
var RaceDetector = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// one limits the process to one processor while bubbles exist.
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
