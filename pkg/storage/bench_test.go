package storage

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
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

// BenchmarkEvents measures what an event costs with few and with many watchers
// in other logical clusters.
func BenchmarkEvents(b *testing.B) {
	for _, watchers := range []int{1, 2000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			s := open(b, backendOf(b, BackendConfig{}), podsGR)
			rv := list(in(b.Context(), "root"), b, s, "/pods", listOpts()).ResourceVersion
			open := func(cluster string) watch.Interface {
				opts := listOpts()
				opts.ResourceVersion = rv
				w, err := s.Watch(in(b.Context(), cluster), "/pods/default", opts)
				require.NoError(b, err)
				b.Cleanup(w.Stop)
				return w
			}
			for i := range watchers - 1 {
				open(fmt.Sprintf("other-%d", i))
			}
			ctx := in(b.Context(), "root")
			w := open("root")
			create(ctx, b, s, newPod("default", "one"))
			<-w.ResultChan()
			b.ResetTimer()
			for i := range b.N {
				touch(ctx, b, s, "/pods/default/one", i)
				<-w.ResultChan()
			}
		})
	}
}

// BenchmarkInitialEvents opens a watch with initial events on one logical
// cluster of many.
func BenchmarkInitialEvents(b *testing.B) {
	for _, clusters := range []int{1, 5000} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) {
			s := open(b, backendOf(b, BackendConfig{}), podsGR)
			for i := range clusters {
				create(in(b.Context(), fmt.Sprintf("cluster-%d", i)), b, s, newPod("default", "one"))
			}
			ctx := in(b.Context(), "cluster-0")
			list(ctx, b, s, "/pods", listOpts())
			opts := listOpts()
			opts.ResourceVersion = "0"
			for b.Loop() {
				w, err := s.Watch(ctx, "/pods/default", opts)
				require.NoError(b, err)
				<-w.ResultChan()
				w.Stop()
			}
		})
	}
}

func touch(ctx context.Context, tb testing.TB, s storage.Interface, key string, i int) {
	tb.Helper()
	require.NoError(tb, s.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, relabel(fmt.Sprint(i)), nil))
}
