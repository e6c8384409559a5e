package clienttest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// ForExample calls f with a testing.TB for an example, and runs the cleanups afterwards.
func ForExample(f func(t testing.TB)) {
	e := &example{}
	defer e.cleanUp()
	f(e)
}

// example is the testing.TB of an example. It implements the methods that servers need.
type example struct {
	testing.TB

	cleanups []func()
}

func (e *example) cleanUp() {
	for _, v := range slices.Backward(e.cleanups) {
		v()
	}
}

func (*example) Helper()            {}
func (e *example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (*example) Context() context.Context { return context.Background() } //nolint:forbidigo // nothing else ends an example

func (*example) Errorf(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
func (*example) FailNow()                          { panic("the example failed") }
