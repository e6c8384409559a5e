// Package background runs servers, informers and controllers while a test runs.
package background

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Run calls run until the test ends, or until stop is called, which waits for run. The test fails if run returns an
// error.
func Run(ctx context.Context, t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}
