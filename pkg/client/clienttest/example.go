package clienttest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// ForExample calls f with what takes the place of a test in an example, and cleans up then.
func ForExample(f func(t testing.TB)) {
	e := &example{}
	defer e.cleanUp()
	f(e)
}

// example is a test of which nobody is told. Its methods are those that servers need.
type example struct {
	testing.TB

	cleanups []func()
}

func (e *example) cleanUp() {
	for _, v := range slices.Backward(e.cleanups) {
		v()
	}
}

// Helper implements testing.TB.
func (*example) Helper() {}

// Cleanup implements testing.TB.
func (e *example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

// Context implements testing.TB.
func (*example) Context() context.Context { return context.Background() } //nolint:forbidigo // nothing else ends an example

// Errorf implements testing.TB.
func (*example) Errorf(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

// FailNow implements testing.TB.
func (*example) FailNow() { panic("the example has failed") }
