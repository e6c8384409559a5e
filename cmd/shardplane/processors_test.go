package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessorsOn(t *testing.T) {
	for _, c := range []struct{ cores, used, processors int }{
		{1, 1, 4}, {2, 2, 4}, {4, 4, 4}, {16, 16, 16},
		{64, 2, 2}, {2, 1, 1}, // a quota
	} {
		require.Equal(t, c.processors, processorsOn(c.cores, c.used), "%d of %d cores", c.used, c.cores)
	}
}

// TestSetProcessors checks that GOMAXPROCS is raised to the minimum unless the environment sets it.
func TestSetProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(runtime.NumCPU())
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Run("set", func(t *testing.T) {
		t.Setenv("GOMAXPROCS", "")
		setProcessors()
		require.Equal(t, runtime.NumCPU(), runtime.GOMAXPROCS(0))
	})
	setProcessors()
	require.Equal(t, max(minProcessors, runtime.NumCPU()), runtime.GOMAXPROCS(0))
}
