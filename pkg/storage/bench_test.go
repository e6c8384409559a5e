package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/request"
)

// BenchmarkConsistentList lists one logical cluster after a write to another resource, which the
// watch cache observes only by a progress notification.
func BenchmarkConsistentList(b *testing.B) {
	backend := backendOf(b, BackendConfig{})
	s := open(b, backend, podsGR)
	ctx := in(b.Context(), "root")
	create(ctx, b, s, newPod("ns", "one"))
	list(ctx, b, s, "/pods", listOpts())
	for b.Loop() {
		_, err := backend.cfg.Client.Put(ctx, "elsewhere", "")
		require.NoError(b, err)
		list(ctx, b, s, "/pods", listOpts())
	}
}

// BenchmarkTenantWatch measures a write with few and with many watches, each of a logical cluster
// of its own.
func BenchmarkTenantWatch(b *testing.B) {
	for _, watches := range []int{1, 2000} {
		b.Run(fmt.Sprintf("watches=%d", watches), func(b *testing.B) {
			s := open(b, backendOf(b, BackendConfig{}), podsGR)
			cluster := func(i int) context.Context { return in(b.Context(), fmt.Sprintf("cluster-%d", i)) }
			r := &readers{}
			for i := range watches {
				at := list(cluster(i), b, s, "/pods", listOpts()).ResourceVersion
				r.add(watchFrom(cluster(i), b, s, "/pods/default", at, listOpts()))
			}
			for i := range 2000 { // the same number of objects in both cases
				create(cluster(i), b, s, newPod("default", "one"))
			}
			r.wait(b, watches)
			measureWrites(b, r, func(i int) { touch(cluster(0), b, s, "/pods/default/one", i) })
		})
	}
}

// BenchmarkShardedWatch measures a write with wildcard watches that divide the objects among them.
func BenchmarkShardedWatch(b *testing.B) {
	for _, field := range []string{"uid", "cluster"} {
		for _, watches := range []int{1, 256} {
			b.Run(fmt.Sprintf("by=%s/watches=%d", field, watches), func(b *testing.B) {
				s := open(b, backendOf(b, BackendConfig{}), podsGR)
				const clusters = 512
				cluster := func(i int) context.Context { return in(b.Context(), fmt.Sprintf("cluster-%d", i%clusters)) }
				for i := range clusters {
					create(cluster(i), b, s, newUIDPod("default", "same"))
				}
				ctx := request.WithWildcard(b.Context())
				r := &readers{}
				rv := list(ctx, b, s, "/pods", listOpts()).ResourceVersion
				for i := range watches {
					r.add(watchFrom(ctx, b, s, "/pods", rv, sharded(b, listOpts(), slice(field, i, watches))))
				}
				measureWrites(b, r, func(i int) { touch(cluster(i), b, s, "/pods/default/same", i) })
			})
		}
	}
}

// measureWrites reports the CPU time of the process for each write and its events.
func measureWrites(b *testing.B, r *readers, write func(i int)) {
	b.Helper()
	cpu := func() int64 {
		var usage syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
		return usage.Utime.Nano() + usage.Stime.Nano()
	}
	earlier := int(r.events.Load())
	b.ResetTimer()
	before := cpu()
	for i := range b.N {
		write(i)
	}
	r.wait(b, earlier+b.N)
	b.StopTimer()
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
}

// readers drain watches and count their events.
type readers struct{ events atomic.Int64 }

func (r *readers) add(w watch.Interface) {
	go func() {
		for event := range w.ResultChan() {
			if event.Type != watch.Bookmark {
				r.events.Add(1)
			}
		}
	}()
}

func (r *readers) wait(b *testing.B, events int) {
	b.Helper()
	require.Eventually(b, func() bool { return r.events.Load() == int64(events) }, deadline, time.Millisecond)
}
