package storage

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// BenchmarkConsistentList lists one logical cluster after a write to another
// resource, of which the watch cache learns only by a progress notification.
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

// BenchmarkTenantWatchers measures what a write costs the server with few and
// with many watchers, each in a logical cluster of its own.
func BenchmarkTenantWatchers(b *testing.B) {
	for _, path := range []string{"ours", "upstream"} {
		for _, watchers := range []int{1, 2000} {
			b.Run(fmt.Sprintf("%s/watchers=%d", path, watchers), func(b *testing.B) {
				s := open(b, backendOf(b, BackendConfig{}), podsGR)
				rv := list(in(b.Context(), "root"), b, s, "/pods", listOpts()).ResourceVersion
				r := &readers{}
				b.Cleanup(r.stop)
				for i := range watchers {
					opts := listOpts()
					opts.ResourceVersion = rv
					cluster := fmt.Sprintf("cluster-%d", i)
					from, key := storage.Interface(s), "/pods/default"
					if paths[path] {
						from, key = s.inner, "/pods/"+cluster+"/default/"
					}
					w, err := from.Watch(in(b.Context(), cluster), key, opts)
					require.NoError(b, err)
					r.add(w)
				}
				for i := range 2000 { // the same objects for few watchers and many, each of which has begun
					create(in(b.Context(), fmt.Sprintf("cluster-%d", i)), b, s, newPod("default", "one"))
				}
				begun := int64(watchers)
				require.Eventually(b, func() bool { return r.events.Load() == begun || r.ended.Load() > 0 }, deadline, time.Millisecond)
				runtime.GC()
				ctx := in(b.Context(), "cluster-0")
				stop := measureCPU(b)
				for i := range b.N {
					touch(ctx, b, s, "/pods/default/one", i)
				}
				require.Eventually(b, func() bool { return r.events.Load() == int64(b.N)+begun || r.ended.Load() > 0 }, deadline, time.Millisecond)
				stop()
				b.ReportMetric(float64(r.ended.Load()), "ended")
			})
		}
	}
}

func touch(ctx context.Context, tb testing.TB, s storage.Interface, key string, i int) {
	tb.Helper()
	require.NoError(tb, s.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, relabel(fmt.Sprint(i)), nil))
}
