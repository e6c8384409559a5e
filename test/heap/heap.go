// Package heap measures live objects in tests of the nightly tier. Other tests of the process, and servers in it, may
// allocate meanwhile, e.g. on a busy machine. Therefore the gate asserts mechanisms instead, e.g. the number of caches.
package heap

import (
	"runtime"
	"testing"
)

// InUse returns the bytes of live objects of this process. With -short it returns 0, so that no condition on growth can
// fail in the gate.
func InUse() int64 {
	if testing.Short() {
		return 0
	}
	for range 3 { // finalizers and weak pointers need several cycles
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // far below
}

// Skip skips a test that measures nothing else, in the gate.
func Skip(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("nightly: live heap or goroutines of the process")
	}
}
