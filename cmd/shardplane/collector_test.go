package main

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGOGCFor(t *testing.T) {
	for live, want := range map[uint64]int{
		0: mostGOGC, 1 << 20: mostGOGC,
		64 << 20:  400,
		128 << 20: 200,
		256 << 20: leastGOGC,
		8 << 30:   leastGOGC,
	} {
		require.Equal(t, want, gogcFor(live), "%d bytes", live)
	}
}

// TestTuneCollector runs in a process of its own, whose collector it changes.
func TestTuneCollector(t *testing.T) {
	const role = "SHARDPLANE_TEST_COLLECTOR"
	if os.Getenv(role) == "" {
		for _, env := range [][]string{{"GOGC=77"}, nil} {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTuneCollector$") //nolint:gosec // this program
			for _, setting := range os.Environ() {
				if len(setting) < 5 || setting[:5] != "GOGC=" {
					cmd.Env = append(cmd.Env, setting)
				}
			}
			cmd.Env = append(append(cmd.Env, role+"=yes"), env...)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		return
	}
	tuneCollector()
	gogc := func() int {
		now := debug.SetGCPercent(50)
		debug.SetGCPercent(now)
		return now
	}
	if _, set := os.LookupEnv("GOGC"); set {
		runtime.GC()
		require.Equal(t, 77, gogc(), "what a person has set stays")
		return
	}
	after := func(want func(int) bool) {
		require.Eventually(t, func() bool {
			runtime.GC()
			return want(gogc())
		}, 30*time.Second, 10*time.Millisecond)
	}
	after(func(now int) bool { return now > 2*leastGOGC })
	ballast := make([]byte, heapGrowth)
	after(func(now int) bool { return now == leastGOGC })
	runtime.KeepAlive(ballast)
	ballast = nil
	after(func(now int) bool { return now > 2*leastGOGC })
	require.Nil(t, ballast)
}
