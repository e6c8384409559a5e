package storage

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

// Each benchmark measures ours and, beside it, the path that upstream's watch
// cache takes for the same request.

// cpuTime is the CPU time of this process, which is the server.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// measureCPU reports the CPU time of each operation until stop is called.
func measureCPU(b *testing.B) (stop func()) {
	b.Helper()
	b.ResetTimer()
	before := cpuTime(b)
	return func() {
		b.StopTimer()
		b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	}
}

// readers drain watches, and count what they read and which ended.
type readers struct {
	events, ended atomic.Int64
	running       sync.WaitGroup
	watches       []watch.Interface
}

func (r *readers) add(w watch.Interface) {
	r.watches = append(r.watches, w)
	r.running.Go(func() {
		for event := range w.ResultChan() {
			if event.Type != watch.Bookmark {
				r.events.Add(1)
			}
		}
		r.ended.Add(1)
	})
}

func (r *readers) stop() {
	for _, w := range r.watches {
		w.Stop()
	}
	r.running.Wait()
}

// openShards opens watches that split the ring by a field, through the hub or as upstream
// serves them. Without a field they have everything.
func openShards(b *testing.B, s *tenantStorage, upstream bool, field string, n int) *readers {
	b.Helper()
	ctx := request.WithWildcard(b.Context())
	rv := list(ctx, b, s, "/pods", listOpts()).ResourceVersion
	r := &readers{}
	for i := range n {
		opts := listOpts()
		opts.ResourceVersion = rv
		if field != "" {
			opts.Predicate.ShardSelector = selectorOf(b, slice(field, i, n))
		}
		from, key := storage.Interface(s), "/pods"
		if upstream {
			from, key = s.inner, "/pods/"
		}
		w, err := from.Watch(ctx, key, opts)
		require.NoError(b, err)
		r.add(w)
	}
	b.Cleanup(r.stop)
	return r
}

var paths = map[string]bool{"ours": false, "upstream": true}

// BenchmarkShardedWatch measures what a write costs the server with watchers
// that split the ring.
func BenchmarkShardedWatch(b *testing.B) {
	enableSharding(b)
	for _, path := range []string{"ours", "upstream"} {
		for _, watchers := range []int{1, 256} {
			b.Run(fmt.Sprintf("%s/watchers=%d", path, watchers), func(b *testing.B) {
				s := open(b, backendOf(b, BackendConfig{}), podsGR)
				ctx := in(b.Context(), "root")
				const pods = 512
				for i := range pods {
					create(ctx, b, s, newUIDPod("default", fmt.Sprint(i)))
				}
				r := openShards(b, s, paths[path], "uid", watchers)
				stop := measureCPU(b)
				for i := range b.N {
					touch(ctx, b, s, fmt.Sprintf("/pods/default/%d", i%pods), i)
				}
				require.Eventually(b, func() bool { return r.events.Load() == int64(b.N) || r.ended.Load() > 0 }, deadline, time.Millisecond)
				stop()
				b.ReportMetric(float64(r.ended.Load()), "ended")
			})
		}
	}
}

// BenchmarkClusterWatch measures what a write to one of 512 logical clusters costs the server with
// a watcher of everything, and with those that split the ring by logical cluster.
func BenchmarkClusterWatch(b *testing.B) {
	enableSharding(b)
	for _, of := range []struct {
		field    string
		watchers int
	}{{"", 1}, {"cluster", 8}, {"cluster", 256}} {
		b.Run(fmt.Sprintf("by=%s/watchers=%d", of.field, of.watchers), func(b *testing.B) {
			s := open(b, backendOf(b, BackendConfig{}), podsGR)
			const clusters = 512
			name := func(i int) string { return fmt.Sprintf("cluster%03d", i%clusters) }
			for i := range clusters {
				create(in(b.Context(), name(i)), b, s, newUIDPod("default", "same"))
			}
			r := openShards(b, s, false, of.field, of.watchers)
			stop := measureCPU(b)
			for i := range b.N {
				touch(in(b.Context(), name(i)), b, s, "/pods/default/same", i)
			}
			require.Eventually(b, func() bool { return r.events.Load() == int64(b.N) }, deadline, time.Millisecond)
			stop()
		})
	}
}

// BenchmarkBursts writes in bursts of 50 that are to come every 10 ms, with 256
// watchers that split the ring, and counts how many are ended.
func BenchmarkBursts(b *testing.B) {
	enableSharding(b)
	const burst, watchers = 50, 256
	for _, path := range []string{"ours", "upstream"} {
		b.Run(path, func(b *testing.B) {
			s := open(b, backendOf(b, BackendConfig{}), podsGR)
			ctx := in(b.Context(), "root")
			for i := range burst {
				create(ctx, b, s, newUIDPod("default", fmt.Sprint(i)))
			}
			r := openShards(b, s, paths[path], "uid", watchers)
			stop := measureCPU(b)
			start := time.Now()
			for round := range b.N {
				var writers sync.WaitGroup
				for i := range burst {
					writers.Go(func() { touch(ctx, b, s, fmt.Sprintf("/pods/default/%d", i), round) })
				}
				writers.Wait()
				if ahead := time.Until(start.Add(time.Duration(round+1) * 10 * time.Millisecond)); ahead > 0 {
					time.Sleep(ahead)
				}
			}
			elapsed := time.Since(start)
			want := int64(b.N * burst)
			require.Eventually(b, func() bool { return r.events.Load() >= want || r.ended.Load() > 0 }, deadline, time.Millisecond)
			stop()
			b.ReportMetric(float64(r.ended.Load()), "ended")
			b.ReportMetric(float64(want)/elapsed.Seconds(), "events/s")
		})
	}
}

// fill puts pods into etcd as the storage would, many at a time.
func fill(b *testing.B, backend *Backend, key func(i int) (cluster, namespace, name string), n int) {
	b.Helper()
	codec := podCodec(b)
	var ops []clientv3.Op
	flush := func() {
		_, err := backend.cfg.Client.Txn(b.Context()).Then(ops...).Commit()
		require.NoError(b, err)
		ops = nil
	}
	for i := range n {
		cluster, namespace, name := key(i)
		pod := newUIDPod(namespace, name)
		pod.Annotations = map[string]string{"kcp.io/cluster": cluster}
		data, err := runtime.Encode(codec, pod)
		require.NoError(b, err)
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/pods/%s/%s/%s", DefaultPrefix, cluster, namespace, name), string(data)))
		if len(ops) == 128 {
			flush()
		}
	}
	if len(ops) > 0 {
		flush()
	}
}

// BenchmarkPages lists 100,000 objects of one namespace, whole and in pages.
func BenchmarkPages(b *testing.B) {
	const objects, limit = 100_000, 500
	backend := backendOf(b, BackendConfig{})
	fill(b, backend, func(i int) (string, string, string) { return "root", "default", fmt.Sprintf("pod-%06d", i) }, objects)
	s := open(b, backend, podsGR)
	require.NoError(b, s.cache.Wait(b.Context()))
	ctx := in(b.Context(), "root")
	require.Len(b, list(ctx, b, s, "/pods", listOpts()).Items, objects)

	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			require.Len(b, list(ctx, b, s, "/pods", listOpts()).Items, objects)
		}
	})
	b.Run("ours/pages", func(b *testing.B) {
		for b.Loop() {
			require.Equal(b, objects, inPages(ctx, b, s, "/pods", limit))
		}
	})
	b.Run("upstream/pages", func(b *testing.B) {
		for b.Loop() {
			require.Equal(b, objects, inPages(ctx, b, s.inner, "/pods/root/", limit))
		}
	})
	first := list(ctx, b, s, "/pods", page(limit, ""))
	for _, at := range []int{1, 100, 199} {
		token := first.Continue
		for range at - 1 {
			token = list(ctx, b, s, "/pods", page(limit, token)).Continue
		}
		b.Run(fmt.Sprintf("ours/page=%d", at), func(b *testing.B) {
			for b.Loop() {
				list(ctx, b, s, "/pods", page(limit, token))
			}
		})
	}
}

func inPages(ctx context.Context, tb testing.TB, s storage.Interface, key string, limit int64) int {
	tb.Helper()
	n, token := 0, ""
	for {
		opts := page(limit, token)
		pods := &example.PodList{}
		require.NoError(tb, s.GetList(ctx, key, opts, pods))
		n += len(pods.Items)
		if token = pods.Continue; token == "" {
			return n
		}
	}
}

// BenchmarkOneCluster lists and streams the ten objects of one logical cluster
// among more and more of others.
func BenchmarkOneCluster(b *testing.B) {
	for _, objects := range []int{1_000, 200_000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			backend := backendOf(b, BackendConfig{})
			fill(b, backend, func(i int) (string, string, string) {
				return fmt.Sprintf("cluster-%d", i/10), "default", fmt.Sprintf("pod-%d", i%10)
			}, objects)
			s := open(b, backend, podsGR)
			require.NoError(b, s.cache.Wait(b.Context()))
			ctx := in(b.Context(), "cluster-50")
			require.Len(b, list(ctx, b, s, "/pods", listOpts()).Items, 10)
			cached := listOpts()
			cached.ResourceVersion, cached.ResourceVersionMatch = "0", metav1.ResourceVersionMatchNotOlderThan
			b.Run("list", func(b *testing.B) {
				for b.Loop() {
					list(ctx, b, s, "/pods", cached)
				}
			})
			for _, path := range []string{"ours", "upstream"} {
				b.Run(path+"/watch", func(b *testing.B) {
					from, key := storage.Interface(s), "/pods"
					if paths[path] {
						from, key = s.inner, "/pods/cluster-50/"
					}
					for b.Loop() {
						w, err := from.Watch(ctx, key, streaming("0"))
						require.NoError(b, err)
						for range 11 {
							<-w.ResultChan()
						}
						w.Stop()
					}
				})
			}
		})
	}
}
