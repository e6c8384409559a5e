//go:build !seededbug

package hub

// A build with the tag seededbug loses events on purpose, so that
// test/robustness can show that it would notice. Here nothing happens.

func (*Hub) forgets() bool { return false }
