package storage

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/pkg/request"
)

// halves are two selectors that cover the ring.
var halves = []string{
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
}

func sharded(t testing.TB, opts storage.ListOptions, selector string) storage.ListOptions {
	t.Helper()
	opts.Predicate.ShardSelector = selectorOf(t, selector)
	return opts
}

// TestSharded verifies that the parts of lists, watches and streamed lists are disjoint and complete.
func TestSharded(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		const pods = 20
		for _, cluster := range []string{"aa", "bb"} {
			for i := range pods {
				create(in(t.Context(), cluster), t, s, newUIDPod("ns", fmt.Sprintf("pod-%02d", i)))
			}
		}
		for name, ctx := range map[string]context.Context{"one": in(t.Context(), "bb"), "all": request.WithWildcard(t.Context())} {
			t.Run(name, func(t *testing.T) {
				whole := list(ctx, t, s, "/pods", listOpts())
				all := names(whole.Items...)

				parts := make([][]string, len(halves))
				for i, half := range halves {
					part := list(ctx, t, s, "/pods", sharded(t, listOpts(), half))
					parts[i] = names(part.Items...)
					require.NotEmpty(t, parts[i])
					require.NotEmpty(t, part.ShardInfo.Selector)
					require.Nil(t, part.RemainingItemCount)
				}
				require.ElementsMatch(t, all, append(append([]string{}, parts[0]...), parts[1]...))

				for i, half := range halves {
					w := watching(ctx, t, s, "/pods", sharded(t, streaming(""), half))
					expect(t, w, added(parts[i])...)
					require.True(t, isEnd(t, next(t, w)))
				}

				for i, half := range halves {
					at := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
					w := watchFrom(ctx, t, s, "/pods", at, sharded(t, listOpts(), half))
					for j := range whole.Items {
						pod := &whole.Items[j]
						touch(in(t.Context(), pod.Annotations["kcp.io/cluster"]), t, s, "/pods/ns/"+pod.Name, i)
						if slices.Contains(parts[i], nameOf(pod)) {
							require.Equal(t, "MODIFIED "+nameOf(pod), describe(next(t, w)))
						}
					}
				}
			})
		}
	})
}

// TestShardedWatchesAreCounted verifies that only open sharded watches are counted.
func TestShardedWatchesAreCounted(t *testing.T) {
	metrics.Register()
	both(t, func(t *testing.T, s *tenantStorage) {
		active := func() float64 {
			value, err := testutil.GetGaugeMetricValue(metrics.WatchShardsTotal.WithLabelValues(s.resource.Group, s.resource.Resource))
			require.NoError(t, err)
			return value
		}
		before := active()
		var watches []watch.Interface
		for _, selector := range append([]string{""}, halves...) {
			opts := streaming("")
			if selector != "" {
				opts = sharded(t, opts, selector)
			}
			watches = append(watches, watching(in(t.Context(), "aa"), t, s, "/pods", opts))
			require.InDelta(t, before+float64(len(watches)-1), active(), 0)
		}
		for _, w := range watches {
			w.Stop()
			w.Stop()
		}
		require.InDelta(t, before, active(), 0)
	})
}

// TestFilteredEventsAreCounted verifies that an event is counted once for each watch that filters it, and initial
// events are not counted.
func TestFilteredEventsAreCounted(t *testing.T) {
	metrics.Register()
	both(t, func(t *testing.T, s *tenantStorage) {
		ctx := in(t.Context(), "aa")
		filtered := func() int {
			value, err := testutil.GetCounterMetricValue(metrics.WatchFilteredEventsTotal.WithLabelValues(s.resource.Group, s.resource.Resource))
			require.NoError(t, err)
			return int(value)
		}
		before := filtered()
		const pods = 6
		for i := range pods {
			create(ctx, t, s, newUIDPod("ns", fmt.Sprintf("pod-%02d", i)))
		}
		var got atomic.Int64
		for _, half := range halves {
			w := watching(ctx, t, s, "/pods", sharded(t, streaming(""), half))
			for end := false; !end; {
				end = isEnd(t, next(t, w))
			}
			var reader sync.WaitGroup
			reader.Go(func() {
				for event := range w.ResultChan() {
					if event.Type != watch.Bookmark {
						got.Add(1)
					}
				}
			})
			defer reader.Wait()
			defer w.Stop()
		}
		require.Equal(t, before, filtered(), "initial events must not be counted")
		for i := range pods {
			touch(ctx, t, s, fmt.Sprintf("/pods/ns/pod-%02d", i), 1)
		}
		require.Eventually(t, func() bool { return got.Load() == pods && filtered() >= before+pods }, deadline, time.Millisecond)
		require.Equal(t, before+pods, filtered())
	})
}

// TestShardSegment verifies the additional key segment on the cache server.
func TestShardSegment(t *testing.T) {
	shard := func(name, cluster string) context.Context {
		ctx := request.WithScope(t.Context(), request.Scope{Shard: request.Shard{Name: name, Wildcard: name == ""}})
		if cluster == "" {
			return request.WithWildcard(ctx)
		}
		return in(ctx, cluster)
	}
	s := open(t, backendOf(t, BackendConfig{ShardSegment: true}), podsGR)
	for _, at := range []string{"east", "west"} {
		for _, cluster := range []string{"aa", "bb"} {
			pod := newPod("ns", "one")
			pod.Annotations = map[string]string{request.ShardAnnotation: "forged"}
			out := create(shard(at, cluster), t, s, pod)
			require.Equal(t, at, out.Annotations[request.ShardAnnotation])
		}
	}
	cases := []struct{ shard, cluster, want string }{
		{"east", "aa", "east|aa "},
		{"east", "", "east|aa east|bb "},
		{"", "bb", "east|bb west|bb "},
		{"", "", "east|aa east|bb west|aa west|bb "},
	}
	for i, c := range cases {
		ctx := shard(c.shard, c.cluster)
		got := ""
		pods := list(ctx, t, s, "/pods/ns", listOpts())
		for j := range pods.Items {
			got += pods.Items[j].Annotations[request.ShardAnnotation] + "|" + pods.Items[j].Annotations["kcp.io/cluster"] + " "
		}
		require.Equal(t, c.want, got)

		w := watchFrom(ctx, t, s, "/pods", pods.ResourceVersion, listOpts())
		for _, at := range []string{"east", "west"} {
			for _, cluster := range []string{"aa", "bb"} {
				touch(shard(at, cluster), t, s, "/pods/ns/one", i)
			}
		}
		got = ""
		for range pods.Items {
			event := next(t, w)
			require.Equal(t, watch.Modified, event.Type, "%v", event.Object)
			pod := event.Object.(*example.Pod)
			got += pod.Annotations[request.ShardAnnotation] + "|" + pod.Annotations["kcp.io/cluster"] + " "
		}
		require.Equal(t, c.want, got)
	}
	err := s.Get(shard("", "aa"), "/pods/ns/one", storage.GetOptions{}, &example.Pod{})
	require.ErrorContains(t, err, "needs one logical cluster")
	err = s.Get(in(t.Context(), "aa"), "/pods/ns/one", storage.GetOptions{}, &example.Pod{})
	require.ErrorContains(t, err, "no shard in the request")
	s = open(t, backendOf(t, BackendConfig{}), podsGR)
	require.ErrorContains(t, s.Get(shard("east", "aa"), "/pods/ns/one", storage.GetOptions{}, &example.Pod{}), "no shard segment")
}
