package mcprovider_test

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/test/heap"
)

// crowd creates logical clusters with one ConfigMap each.
func crowd(t testing.TB, n int) (servers, []logicalcluster.Name) {
	t.Helper()
	s := newServers(t, 1)
	names := make([]logicalcluster.Name, 0, n)
	for i := range n {
		name := logicalcluster.Name(fmt.Sprintf("cluster%08d", i))
		names = append(names, name)
		s.cluster(t, 0, name)
		s.put(t, 0, name, "default", "a", "first")
	}
	return s, names
}

// startSource runs a provider and a source of ConfigMaps, and waits for n requests.
func startSource(t testing.TB, options mcprovider.Options, n int) (p *mcprovider.Provider, queue mcprovider.Queue, stop func()) {
	t.Helper()
	options.NoEngage = true
	p, stop = start(t, options, nil)
	queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[mcreconcile.Request]())
	t.Cleanup(queue.ShutDown)
	source := p.Source(&corev1.ConfigMap{})
	require.NoError(t, source.Start(t.Context(), queue))
	require.NoError(t, source.WaitForSync(t.Context()))
	for range n {
		request, _ := queue.Get()
		queue.Done(request)
	}
	return p, queue, stop
}

// processor returns the CPU time of this process in nanoseconds.
func processor(b *testing.B) float64 {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestGoroutines checks that the number of goroutines does not depend on the number of logical clusters.
func TestGoroutines(t *testing.T) {
	heap.Skip(t)
	count := func(n int) (count int) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s, _ := crowd(t, n)
			startSource(t, s.options(), n)
			least := 0
			eventually(t, "goroutines of the start have ended", func() bool {
				now := runtime.NumGoroutine()
				caughtUp := now == least
				least = now
				return caughtUp
			})
			count = least
		})
		return count
	}
	few, many := count(10), count(1000)
	require.InDelta(t, few, many, 15, "goroutines with 10 and with 1000 logical clusters")
}

// BenchmarkEvent measures an event by Source and by For, from the write to the request in the queue. The CPU time includes the server.
func BenchmarkEvent(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprintf("source/clusters=%d", n), func(b *testing.B) {
			s, names := crowd(b, n)
			_, queue, _ := startSource(b, s.options(), n)
			b.ReportAllocs()
			before := processor(b)
			for i := 0; b.Loop(); i++ {
				s.put(b, 0, names[i%n], "default", "a", fmt.Sprint(i))
				request, _ := queue.Get()
				queue.Done(request)
			}
			b.ReportMetric((processor(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
		})
	}
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("engaged/clusters=%d", n), func(b *testing.B) {
			s, names := crowd(b, n)
			p, err := mcprovider.New(s.options())
			require.NoError(b, err)
			m := newManager(b, s[0].ClientConfig(), p)
			done := make(chan struct{}, n)
			require.NoError(b, mcbuilder.ControllerManagedBy(m).WithOptions(unnamed).For(&corev1.ConfigMap{}).
				Complete(mcreconcile.Func(func(context.Context, mcreconcile.Request) (reconcile.Result, error) {
					done <- struct{}{}
					return reconcile.Result{}, nil
				})))
			run(b, m.Start)
			for range n {
				<-done
			}
			b.ReportAllocs()
			before := processor(b)
			for i := 0; b.Loop(); i++ {
				s.put(b, 0, names[i%n], "default", "a", fmt.Sprint(i))
				<-done
			}
			b.ReportMetric((processor(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
		})
	}
}

// BenchmarkMemory measures the memory for a logical cluster, and for its client and resources after they have been used.
func BenchmarkMemory(b *testing.B) {
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprintf("readYourWrites=%v", kept), func(b *testing.B) {
			const n = 2000
			s, names := crowd(b, n)
			options := s.options()
			options.ReadYourWrites = kept
			for b.Loop() {
				before := heap.InUse()
				p, _, stop := startSource(b, options, n)
				known := heap.InUse()
				for _, name := range names {
					c, err := p.Get(b.Context(), multicluster.ClusterName(name))
					require.NoError(b, err)
					require.NoError(b, c.GetClient().Get(b.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{}))
				}
				used := heap.InUse()
				b.ReportMetric((float64(known)-float64(before))/n, "B/cluster")
				b.ReportMetric((float64(used)-float64(known))/n, "B/used-cluster")
				runtime.KeepAlive(p)
				stop()
			}
		})
	}
}

// BenchmarkGet measures how a reconciler reads an object: its cluster, a client, and the read.
func BenchmarkGet(b *testing.B) {
	s, names := crowd(b, 100)
	p, _, _ := startSource(b, s.options(), 100)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c, err := p.Get(b.Context(), multicluster.ClusterName(names[i%100]))
		require.NoError(b, err)
		require.NoError(b, c.GetClient().Get(b.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{}))
	}
}
