package storage

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	apisharding "k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/request/shardselector"
)

// ring selects everything.
const ring = "shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')"

// slice selects part i of n.
func slice(field string, i, n int) string {
	bound := func(i int) string {
		if i == n {
			return "0x10000000000000000"
		}
		return fmt.Sprintf("0x%016x", uint64(i)*(^uint64(0)/uint64(n)))
	}
	return fmt.Sprintf("shardRange(object.metadata.%s, '%s', '%s')", field, bound(i), bound(i+1))
}

func newUIDPod(namespace, name string) *example.Pod {
	pod := newPod(namespace, name)
	pod.UID = uuid.NewUUID()
	return pod
}

// TestHubUnion verifies that watchers which split the ring together receive each event once, in order.
func TestHubUnion(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	const parts, writes = 5, 400
	ctx := request.WithWildcard(t.Context())
	for _, field := range []string{"uid", "namespace", "cluster"} {
		t.Run(field, func(t *testing.T) {
			at := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
			var shards []watch.Interface
			open := func() {
				for i := range parts {
					shards = append(shards, watchFrom(ctx, t, s, "/pods", at, sharded(t, listOpts(), slice(field, i, parts))))
				}
			}
			open()
			random := rand.New(rand.NewPCG(1, 2))
			for i := range writes {
				if i == writes/2 {
					open() // these resume
				}
				cluster := in(t.Context(), fmt.Sprintf("c%d", random.IntN(4)))
				name := fmt.Sprintf("p%d", random.IntN(20))
				namespace := fmt.Sprintf("ns%d", random.IntN(9))
				key := "/pods/" + namespace + "/" + name
				err := s.GuaranteedUpdate(cluster, key, &example.Pod{}, false, nil, relabel(fmt.Sprint(i)), nil)
				switch {
				case storage.IsNotFound(err):
					create(cluster, t, s, newUIDPod(namespace, name))
				case random.IntN(4) == 0:
					remove(cluster, t, s, key)
				}
			}
			last := create(in(t.Context(), "end"), t, s, newUIDPod("end", "end-"+field)).ResourceVersion
			want := collectUntil(t, watchFrom(ctx, t, s, "/pods", at, listOpts()), last)
			require.Equal(t, want, collect(t, shards[:parts], len(want)))
			require.Equal(t, want, collect(t, shards[parts:], len(want)))
		})
	}
}

// collect returns n events of all watches by version, and checks the order of each watch.
func collect(tb testing.TB, watches []watch.Interface, n int) []string {
	tb.Helper()
	var got []string
	last := make([]uint64, len(watches))
	require.Eventually(tb, func() bool {
		for i, w := range watches {
			for len(w.ResultChan()) > 0 {
				event := next(tb, w)
				if event.Type == watch.Bookmark {
					continue
				}
				version := versionOf(tb, event.Object)
				require.Greater(tb, version, last[i])
				last[i] = version
				got = append(got, line(tb, event))
			}
		}
		return len(got) >= n
	}, deadline, time.Millisecond)
	slices.SortStableFunc(got, func(a, b string) int { return cmp.Compare(leading(tb, a), leading(tb, b)) })
	return got
}

func leading(tb testing.TB, line string) uint64 {
	tb.Helper()
	number, _, _ := strings.Cut(line, " ")
	version, err := strconv.ParseUint(number, 10, 64)
	require.NoError(tb, err)
	return version
}

func versionOf(tb testing.TB, obj runtime.Object) uint64 {
	tb.Helper()
	version, err := storage.APIObjectVersioner{}.ObjectResourceVersion(obj)
	require.NoError(tb, err)
	return version
}

func line(tb testing.TB, event watch.Event) string {
	tb.Helper()
	pod, ok := event.Object.(*example.Pod)
	require.True(tb, ok, "%v", event.Object)
	return fmt.Sprintf("%s %s %s %s", pod.ResourceVersion, event.Type, nameOf(pod), pod.Labels["value"])
}

func collectUntil(tb testing.TB, w watch.Interface, version string) []string {
	tb.Helper()
	var got []string
	for {
		event := next(tb, w)
		if event.Type == watch.Bookmark {
			continue
		}
		got = append(got, line(tb, event))
		if strings.HasPrefix(got[len(got)-1], version+" ") {
			return got
		}
	}
}

// TestHubTransitions verifies that objects are added and deleted for a sharded watch according to its selectors, and
// that a deletion has the last state and the version of the deletion.
func TestHubTransitions(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	ctx := in(t.Context(), "aa")
	at := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
	selecting := func() storage.ListOptions {
		opts := sharded(t, listOpts(), ring)
		opts.Predicate.Label = labels.SelectorFromSet(labels.Set{"value": "yes"})
		opts.Predicate.Field = fields.OneTermEqualSelector("metadata.name", "one")
		return opts
	}
	live := watchFrom(ctx, t, s, "/pods/ns", at, selecting())
	wildcard := watchFrom(request.WithWildcard(t.Context()), t, s, "/pods/ns", at, selecting())
	create(ctx, t, s, newUIDPod("ns", "one"))
	create(ctx, t, s, newUIDPod("ns", "two"))
	create(ctx, t, s, newUIDPod("other", "one"))
	create(in(t.Context(), "bb"), t, s, newUIDPod("ns", "one"))
	for _, value := range []string{"yes", "yes, too", "yes", "yes"} {
		update(ctx, t, s, "/pods/ns/one", relabel(value))
		update(ctx, t, s, "/pods/ns/two", relabel(value))
	}
	deleted := remove(ctx, t, s, "/pods/ns/one")
	replayed := watchFrom(ctx, t, s, "/pods/ns", at, selecting())
	for name, w := range map[string]watch.Interface{"live": live, "wildcard": wildcard, "replayed": replayed} {
		t.Run(name, func(t *testing.T) {
			var last uint64
			for _, want := range []string{"ADDED yes", "DELETED yes", "ADDED yes", "DELETED yes"} {
				event := next(t, w)
				pod := event.Object.(*example.Pod)
				require.Equal(t, want, string(event.Type)+" "+pod.Labels["value"])
				require.Greater(t, versionOf(t, event.Object), last)
				last = versionOf(t, event.Object)
			}
			require.Equal(t, deleted.ResourceVersion, fmt.Sprint(last))
		})
	}
}

// TestHubSingleObject verifies that a watch of one object ignores objects with a longer name.
func TestHubSingleObject(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	ctx := in(t.Context(), "aa")
	at := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
	opts := sharded(t, storage.ListOptions{Predicate: everything()}, ring)
	w := watchFrom(ctx, t, s, "/pods/ns/one", at, opts)
	create(ctx, t, s, newUIDPod("ns", "one-more"))
	create(ctx, t, s, newUIDPod("ns", "one"))
	expect(t, w, "ADDED aa|ns/one")
}

// TestHubOlder verifies that events from before the hub's history come from etcd, or the watch expires.
func TestHubOlder(t *testing.T) {
	t.Parallel()
	const writes = 300
	backend := backendOf(t, BackendConfig{MaxHistory: writes / 2})
	s := open(t, backend, podsGR)
	ctx := in(t.Context(), "aa")
	first := create(ctx, t, s, newUIDPod("ns", "one")).ResourceVersion
	for i := range writes {
		touch(ctx, t, s, "/pods/ns/one", i)
	}
	now, err := s.GetCurrentResourceVersion(ctx)
	require.NoError(t, err)
	require.NoError(t, s.hub.WaitFresh(ctx, now), "the hub must have dropped the events")
	for _, ctx := range []context.Context{ctx, request.WithWildcard(t.Context())} {
		w := watchFrom(ctx, t, s, "/pods", first, sharded(t, listOpts(), ring))
		for i := range writes {
			event := next(t, w)
			require.Equal(t, watch.Modified, event.Type)
			require.Equal(t, fmt.Sprint(i), event.Object.(*example.Pod).Labels["value"])
		}
		w.Stop()
	}
	late := open(t, backend, podsGR) // its watch cache begins after the writes
	requireExpired(t, watchFrom(ctx, t, late, "/pods", first, sharded(t, listOpts(), ring)))
}

// TestHubKeepsEvents verifies that the hub keeps events and the watch cache few, with and without watches.
func TestHubKeepsEvents(t *testing.T) {
	metrics.Register()
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	ctx := in(t.Context(), "aa")
	first := create(ctx, t, s, newUIDPod("ns", "one")).ResourceVersion
	const writes = 400
	for i := range writes {
		touch(ctx, t, s, "/pods/ns/one", i)
	}
	w := watchFrom(ctx, t, s, "/pods", first, listOpts())
	for i := range writes {
		require.Equal(t, fmt.Sprint(i), next(t, w).Object.(*example.Pod).Labels["value"])
	}
	capacity, err := testutil.GetGaugeMetricValue(metrics.WatchCacheCapacity.WithLabelValues(s.resource.Group, s.resource.Resource))
	require.NoError(t, err)
	require.InDelta(t, 100, capacity, 0)
	again := watchFrom(ctx, t, s, "/pods", first, listOpts())
	for i := range writes {
		require.Equal(t, fmt.Sprint(i), next(t, again).Object.(*example.Pod).Labels["value"])
	}
}

// TestHubBookmarks verifies that a bookmark precedes the deadline of a watch, and that only later versions follow.
func TestHubBookmarks(t *testing.T) {
	t.Parallel()
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	ctx, cancel := context.WithTimeout(in(t.Context(), "aa"), 4*time.Second)
	defer cancel()
	w := watching(ctx, t, s, "/pods", sharded(t, streaming(""), slice("uid", 0, 2)))
	end := next(t, w)
	require.True(t, isEnd(t, end))
	require.Equal(t, slice("uid", 0, 2), end.Object.(*example.Pod).Annotations[hashrange.InfoAnnotation])
	pod := newPod("ns", "one")
	pod.UID = outside(t, slice("uid", 0, 2))
	created := create(in(t.Context(), "aa"), t, s, pod)
	bookmark := next(t, w)
	require.Equal(t, watch.Bookmark, bookmark.Type)
	// Other tests write to the same etcd.
	order, err := resourceversion.CompareResourceVersion(bookmark.Object.(*example.Pod).ResourceVersion, created.ResourceVersion)
	require.NoError(t, err)
	require.GreaterOrEqual(t, order, 0)
	for event := range w.ResultChan() {
		require.Equal(t, watch.Bookmark, event.Type)
	}
}

// outside returns a UID outside of a selector.
func outside(tb testing.TB, selector string) types.UID {
	tb.Helper()
	parsed := selectorOf(tb, selector)
	for {
		pod := newUIDPod("ns", "one")
		if in, err := parsed.Matches(pod); err == nil && !in {
			return pod.UID
		}
	}
}

func selectorOf(tb testing.TB, selector string) apisharding.Selector {
	tb.Helper()
	parsed, err := shardselector.Parse(selector)
	require.NoError(tb, err)
	return parsed
}

// now counts requests for the current resource version.
type now struct {
	storage.Interface

	requests atomic.Int64
}

func (n *now) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	n.requests.Add(1)
	return n.Interface.GetCurrentResourceVersion(ctx)
}

// TestHubReadsCurrentRevision verifies that a client receives its writes after the watch has started.
func TestHubReadsCurrentRevision(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	counted := &now{Interface: s.inner}
	s.inner = counted
	opts := streaming("")
	opts.SendInitialEvents = new(false)
	ctx := in(t.Context(), "aa")
	w := watchFrom(ctx, t, s, "/pods", "", opts)
	require.EqualValues(t, 1, counted.requests.Load())
	create(ctx, t, s, newPod("ns", "one"))
	expect(t, w, "ADDED aa|ns/one")
}
