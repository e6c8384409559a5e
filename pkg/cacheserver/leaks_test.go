package cacheserver_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestServersDoNotLeak starts everything that the tests of this package start, and stops it. It does not run in
// parallel because goroutines belong to the process.
func TestServersDoNotLeak(t *testing.T) {
	options := []goleak.Option{
		goleak.IgnoreCurrent(),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// The health check of the log runs once for the process.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	}
	t.Run("servers", func(t *testing.T) {
		regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
		amber := newTestShard(t, "amber")
		create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
		regions["eu"].push(t, amber)
		r := newReader(t, regions["us"].cacheServer)
		requireReplicas(t, regions["us"].cacheServer, []string{"amber|root|one"})
		r.waitForEvent(t, "add one")
	})
	// Requests that their client has given up, and upstream's timers, end by themselves some seconds later.
	var leaked error
	require.Eventually(t, func() bool { leaked = goleak.Find(options...); return leaked == nil }, deadline, time.Second/10, "%v", leaked)
}
