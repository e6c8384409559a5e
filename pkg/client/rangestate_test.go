package client

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/bubble"
)

func manyKey(i int) Key {
	return Key{Cluster: logicalcluster.Name(fmt.Sprintf("c%d", i)), Namespace: "default", Name: "x"}
}

func filledClusters(n int) *scripted {
	server := newScripted()
	server.shards = honours
	server.fill(n, "first")
	return server
}

func (s *scripted) fill(n int, content string) {
	for i := range n {
		s.put(manyKey(i), content)
	}
}

func partsOf(t testing.TB, key ShardKey, parts ...int) Ranges {
	t.Helper()
	all := Ranges{}
	for _, i := range parts {
		part, err := PartOf(key, i, 4)
		require.NoError(t, err)
		all = all.union(part)
	}
	return all
}

func (s *scripted) in(ranges Ranges) map[Key]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[Key]string{}
	for key, obj := range s.objects {
		if ranges.Contains(obj) {
			all[key] = contentOf(obj)
		}
	}
	return all
}

type sharded struct {
	*follower
	ranges        *ChangingRanges
	deleted, left map[Key]int
}

func (s *sharded) requireComplete(t *testing.T, server *scripted) {
	t.Helper()
	bubble.Wait()
	want := server.in(s.ranges.Ranges())
	require.Equal(t, want, contentsOf(s.Lister().List(nil)))
	require.Equal(t, want, s.notified)
	require.NoError(t, s.LastError())
	require.True(t, s.HasSynced())
	require.True(t, s.LoadedRanges().Equal(s.ranges.Ranges()), "%v, want %v", s.LoadedRanges(), s.ranges.Ranges())
}

func inParts(t *testing.T, server *scripted, ranges Ranges, options InformerOptions[*corev1.ConfigMap], f func(t *testing.T, i *sharded)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := &sharded{ranges: NewChangingRanges(ranges), deleted: map[Key]int{}, left: map[Key]int{}}
		options.Ranges = s.ranges
		s.follower = &follower{server.informer(options), map[Key]string{}}
		handler := server.neverDenied(t, recordingTo(t, s.notified))
		onDelete := handler.OnDelete
		handler.OnDelete = func(last *corev1.ConfigMap, tombstone bool) {
			s.deleted[KeyOf(last)]++
			onDelete(last, tombstone)
		}
		handler.OnLeave = func(last *corev1.ConfigMap, why Leave) {
			if why != RangeMoved || s.notified[KeyOf(last)] != contentOf(last) {
				t.Errorf("%s leaves as %s, but was notified as %s", KeyOf(last), contentOf(last), s.notified[KeyOf(last)])
			}
			s.left[KeyOf(last)]++
			delete(s.notified, KeyOf(last))
		}
		s.AddEventHandler(handler)
		defer background.Run(t.Context(), t, s.Run)()
		f(t, s)
	})
}

// TestFiltered: however a server handles selectors, the informer contains only its ranges, reports which side filters,
// and counts discarded objects.
func TestFiltered(t *testing.T) {
	for _, listed := range []bool{false, true} {
		for shards, want := range map[sharding]Filtered{
			honours: FilteredByServer, silent: FilteredUnknown, ignores: FilteredByClient, fails: FilteredByClient, invalid: FilteredByClient,
		} {
			t.Run(fmt.Sprint(shards, " listed=", listed), func(t *testing.T) {
				server := filledClusters(40)
				server.shards = shards
				inParts(t, server, partsOf(t, ByCluster, 1), InformerOptions[*corev1.ConfigMap]{DisableWatchList: listed}, func(t *testing.T, i *sharded) {
					bubble.Wait()
					i.requireComplete(t, server)
					require.Equal(t, want, i.Filtered())
					server.put(manyKey(3), "second")
					server.put(manyKey(50), "first")
					server.remove(manyKey(5))
					i.requireComplete(t, server)
					others := 42 - len(server.in(partsOf(t, ByCluster, 0, 1, 2, 3))) + len(server.in(partsOf(t, ByCluster, 0, 2, 3)))
					if want == FilteredByClient {
						require.NotZero(t, i.Discarded())
						require.GreaterOrEqual(t, int(i.Discarded()), others-2)
					} else {
						require.Zero(t, i.Discarded())
					}

					// The server's support is disabled and enabled again.
					server.update(func() { server.shards = honours })
					server.end(nil)
					pass(10 * time.Second)
					require.Equal(t, FilteredByServer, i.Filtered())
					discarded := i.Discarded()
					server.put(manyKey(60), "first")
					server.fill(40, "third")
					i.requireComplete(t, server)
					require.Equal(t, discarded, i.Discarded())
					server.update(func() { server.shards = ignores })
					server.end(nil)
					pass(10 * time.Second)
					server.fill(40, "fourth")
					i.requireComplete(t, server)
					require.Equal(t, FilteredByClient, i.Filtered())
					require.Equal(t, 1, server.count(&server.initial)+min(server.count(&server.lists), 1)-server.count(&server.initial)*min(server.count(&server.lists), 1), "the state was read again")
				})
			})
		}
	}
}

// TestOtherSelector: a response for other ranges than requested is rejected.
func TestOtherSelector(t *testing.T) {
	reported := map[sharding]string{
		narrows: "shardRange(object.metadata.cluster, '0x4000000000000000', '0x5000000000000001')", garbles: "shardRange(object.metadata.cluster)", unnamed: "none",
	}
	for n, does := range []sharding{narrows, narrows, garbles, garbles, unnamed, unnamed} {
		listed := n%2 == 1
		t.Run(fmt.Sprint(does, ",listed=", listed), func(t *testing.T) {
			server := filledClusters(40)
			server.shards = does
			inParts(t, server, partsOf(t, ByCluster, 1), InformerOptions[*corev1.ConfigMap]{DisableWatchList: listed}, func(t *testing.T, i *sharded) {
				pass(time.Minute)
				require.False(t, i.HasSynced())
				require.Equal(t, FilteredUnknown, i.Filtered())
				require.ErrorContains(t, i.LastError(), "the server has applied another shardSelector than requested, check for proxies that change requests: "+
					"requested shardRange(object.metadata.cluster, '0x4000000000000000', '0x8000000000000000'), got "+reported[does])
				server.update(func() { server.shards = honours })
				pass(time.Minute)
				i.requireComplete(t, server)
				require.Equal(t, FilteredByServer, i.Filtered())
			})
		})
	}
}

// TestObjectsWithoutClusterInRanges: objects without a logical cluster are reported by each replica.
func TestObjectsWithoutClusterInRanges(t *testing.T) {
	for part := range 4 {
		server := filledClusters(10)
		server.shards = ignores
		server.put(Key{Namespace: "default", Name: "x"}, "first", func(cm *corev1.ConfigMap) { delete(cm.Annotations, logicalcluster.AnnotationKey) })
		inParts(t, server, partsOf(t, ByCluster, part), InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *sharded) {
			pass(time.Minute)
			require.True(t, i.HasSynced())
			require.ErrorIs(t, i.LastError(), errUnnamed, "part %d", part)
		})
	}
}

// TestChangingRanges: remaining objects are neither sent again nor notified, added ranges are streamed, and removed
// ones leave immediately without deletions.
func TestChangingRanges(t *testing.T) {
	server := filledClusters(100)
	inParts(t, server, partsOf(t, ByCluster, 0, 1), InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *sharded) {
		pass(time.Second)
		i.requireComplete(t, server)
		sent := server.registered
		require.Equal(t, len(i.notified), sent)

		removed := server.in(partsOf(t, ByCluster, 0))
		i.ranges.Set(partsOf(t, ByCluster, 1, 2))
		pass(time.Second)
		i.requireComplete(t, server)
		require.Equal(t, sent+len(server.in(partsOf(t, ByCluster, 2))), server.registered, "only objects of the added range must be sent")
		require.Empty(t, i.deleted)
		require.ElementsMatch(t, slices.Collect(maps.Keys(removed)), slices.Collect(maps.Keys(i.left)))
		require.Len(t, server.watches, 1, "one stream must contain all ranges")
		for key := range removed {
			_, err := i.Lister().Get(key)
			require.ErrorIs(t, err, ErrNotOwned)
			_, err = i.Lister().Cluster(key.Cluster).Get(key.Namespace, key.Name)
			require.ErrorIs(t, err, ErrNotOwned)
			break
		}
		for key := range server.in(partsOf(t, ByCluster, 1)) {
			_, err := i.Lister().Cluster(key.Cluster).Get(key.Namespace, "nothing")
			require.True(t, apierrors.IsNotFound(err))
			break
		}

		// Removed ranges leave immediately, even while the server is unavailable.
		server.script(unavailable, unavailable, unavailable)
		i.ranges.Set(partsOf(t, ByCluster, 1, 3))
		bubble.Wait()
		for _, obj := range i.Lister().List(nil) {
			require.True(t, partsOf(t, ByCluster, 1, 3).Contains(obj))
		}
		pass(time.Minute)
		i.requireComplete(t, server)

		// No ranges, and all.
		i.ranges.Set(Ranges{})
		pass(time.Second)
		require.Zero(t, i.Lister().Len())
		require.Empty(t, server.watches)
		i.ranges.Set(partsOf(t, ByCluster, 0, 1, 2, 3))
		pass(time.Second)
		i.requireComplete(t, server)
		require.Empty(t, i.deleted)
		i.ranges.Set(partsOf(t, ByUID, 1))
		pass(time.Second)
		i.requireComplete(t, server)
	})
}

// TestMerge: either stream may be ahead when they are merged.
func TestMerge(t *testing.T) {
	server := filledClusters(100)
	inParts(t, server, partsOf(t, ByCluster, 0), InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *sharded) {
		pass(time.Second)
		// The first stream has received none of this.
		incoming := partsOf(t, ByCluster, 1)
		for key := range server.in(incoming) {
			server.put(key, "second")
			server.remove(key)
			server.put(key, "third")
		}
		for n := 100; n < 140; n++ {
			server.put(manyKey(n), "first")
			if n%2 == 0 {
				server.remove(manyKey(n))
			}
		}
		sent := server.registered
		i.ranges.Set(partsOf(t, ByCluster, 0, 1))
		pass(time.Second)
		i.requireComplete(t, server)
		require.Equal(t, len(server.in(incoming)), server.registered-sent)
		require.Empty(t, i.deleted, "deletions before the range was added must not be notified")
		require.Zero(t, i.counts.relists.Load())
		server.fill(140, "fourth")
		i.requireComplete(t, server)
		i.mu.Lock()
		require.Empty(t, i.rangeState.floors)
		i.mu.Unlock()

		// The first stream's version is compacted: one list.
		server.compact()
		for key := range server.in(partsOf(t, ByCluster, 2)) {
			server.put(key, "fifth")
		}
		server.compact()
		i.ranges.Set(partsOf(t, ByCluster, 0, 1, 2))
		pass(10 * time.Second)
		i.requireComplete(t, server)
		require.Empty(t, i.deleted)
	})
}

// TestMergeOfLaterStream: if the first stream is ahead, both continue from the version of the second one, without
// repeating events of the first.
func TestMergeOfLaterStream(t *testing.T) {
	held, incoming := partsOf(t, ByCluster, 0), partsOf(t, ByCluster, 1)
	i := newScripted().informer(InformerOptions[*corev1.ConfigMap]{Ranges: held.union(incoming)})
	i.assign(held)
	i.requestRanges(true)
	i.loadedCompletely()
	i.setResourceVersion("120")
	i.assign(held.union(incoming))
	require.True(t, i.missing().Equal(incoming))
	i.merge("110")
	require.Equal(t, "110", i.ResourceVersion())
	require.True(t, i.LoadedRanges().Equal(held.union(incoming)))
	at := func(ranges Ranges, version string) event {
		return event{position: position{ByCluster, ranges.intervals[0].First}, uid: "u", version: version, deleted: true}
	}
	require.False(t, i.admit(&i.rangeState.loaded, at(held, "111")))
	require.False(t, i.admit(&i.rangeState.loaded, at(held, "120")))
	require.True(t, i.admit(&i.rangeState.loaded, at(incoming, "120")))
	require.True(t, i.admit(&i.rangeState.loaded, at(held, "121")))
	require.Empty(t, i.rangeState.floors)
}

// TestEventOfRemovedRange: events of a range that has left are dropped.
func TestEventOfRemovedRange(t *testing.T) {
	server := filledClusters(40)
	var leaving func()
	inParts(t, server, partsOf(t, ByCluster, 0), InformerOptions[*corev1.ConfigMap]{
		Transform: func(cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
			if cm.Data["content"] == "second" {
				leaving()
			}
			return cm, nil
		},
	}, func(t *testing.T, i *sharded) {
		leaving = func() { i.assign(Ranges{}) }
		i.requireComplete(t, server)
		for key := range server.in(i.ranges.Ranges()) {
			server.put(key, "second")
			break
		}
		bubble.Wait()
		require.Empty(t, i.notified)
		require.Zero(t, i.Lister().Len())
	})
}

// TestOldVersionBecomesVisible: an object with an old version that becomes visible in a virtual workspace is delivered after
// streams were merged.
func TestOldVersionBecomesVisible(t *testing.T) {
	server := filledClusters(100)
	inParts(t, server, partsOf(t, ByCluster, 0), InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *sharded) {
		pass(time.Second)
		var hidden *corev1.ConfigMap
		for n := 100; hidden == nil; n++ {
			server.put(manyKey(n), "hidden")
			server.mu.Lock()
			if obj := server.objects[manyKey(n)]; partsOf(t, ByCluster, 1).Contains(obj) {
				hidden = obj
			}
			delete(server.objects, manyKey(n))
			server.history = server.history[:len(server.history)-1]
			server.mu.Unlock()
		}
		for n := 200; n < 230; n++ {
			if server.put(manyKey(n), "x"); partsOf(t, ByCluster, 0, 1).Contains(server.objects[manyKey(n)]) {
				server.remove(manyKey(n))
			}
		}
		i.ranges.Set(partsOf(t, ByCluster, 0, 1))
		pass(time.Second)
		i.requireComplete(t, server)
		server.mu.Lock()
		server.objects[KeyOf(hidden)] = hidden
		for _, w := range server.watches {
			w.send(watch.Event{Type: watch.Added, Object: hidden})
		}
		server.mu.Unlock()
		server.put(manyKey(3), "after")
		server.fill(20, "after")
		pass(10 * time.Second)
		i.requireComplete(t, server)
	})
}

// TestRangesModel changes the ranges of an informer that follows a server which fails at random. Finally the informer
// has, and has delivered, the objects in its ranges. In between no object is added twice, updated without a change or
// from another state, leaves without being present, or is reported as deleted while the server has it.
func TestRangesModel(t *testing.T) {
	for seed := range bubble.Seeds(150, 48) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := &random{rand: rand.New(rand.NewPCG(seed, 2))}
			server := filledClusters(0)
			server.shards = []sharding{honours, honours, silent, ignores, fails, invalid}[seed%6]
			key := []ShardKey{ByCluster, ByCluster, ByUID, ByNamespace}[seed/6%4]
			write := func() {
				object := manyKey(r.IntN(40))
				object.Namespace = fmt.Sprint("n", r.IntN(8))
				if r.IntN(3) == 0 {
					server.remove(object)
					return
				}
				server.put(object, fmt.Sprint("content", r.IntN(100)))
			}
			for range 100 {
				write()
			}
			some := func() Ranges {
				ranges := Ranges{}
				for part := range 8 {
					if r.IntN(2) == 0 {
						of, err := PartOf(key, part, 8)
						require.NoError(t, err)
						ranges = ranges.union(of)
					}
				}
				return ranges
			}
			faulty := randomly(r, 2+r.IntN(6))
			server.next, server.between = faulty, write
			inParts(t, server, some(), InformerOptions[*corev1.ConfigMap]{DisableWatchList: seed%5 == 0}, func(t *testing.T, i *sharded) {
				for range 150 {
					if r.IntN(2) == 0 {
						bubble.Wait()
					}
					switch event := r.IntN(12); event {
					case 0, 1, 2:
						server.disturb(event)
					case 3, 4:
						pass(time.Duration(r.IntN(3000)) * time.Millisecond)
					case 5, 6:
						i.ranges.Set(some())
					case 7:
						server.update(func() { server.shards = []sharding{honours, silent, ignores, fails, invalid}[r.IntN(5)] })
					default:
						write()
					}
				}
				server.calm()
				pass(2 * time.Minute) // longer than any timeout
				for range 20 {
					write()
				}
				i.requireComplete(t, server)
				sent := server.registered
				from, err := strconv.ParseInt(i.ResourceVersion(), 10, 64)
				// Otherwise everything is listed once, or no range remains.
				resumes := err == nil && from >= server.compacted && i.Lister().Len() > 0
				i.ranges.Set(i.ranges.Ranges().union(partsOf(t, key, 3)))
				pass(time.Minute)
				i.requireComplete(t, server)
				if server.shards == honours && resumes {
					require.LessOrEqual(t, server.registered-sent, len(server.in(partsOf(t, key, 3))), "objects of kept ranges were sent again")
				}
			})
		})
	}
}
