package hub

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	parser "k8s.io/apiserver/pkg/sharding"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

func named(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Namespace: "in-" + name, Annotations: map[string]string{logicalcluster.AnnotationKey: "of-" + name}}}
}

// TestTree compares the tree and its snapshots with maps.
func TestTree(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, seed))
	var items []item
	model := map[string]runtime.Object{}
	for i := range 1000 {
		key := fmt.Sprintf("/r/%04d", i*2)
		obj := named(key)
		items, model[key] = append(items, item{key, obj}), obj
	}
	random.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	tree := newTree(items)

	type moment struct {
		snapshot *snapshot
		model    map[string]runtime.Object
	}
	moments := []moment{{tree.snapshot(), maps.Clone(model)}}
	for round := range 6 {
		for range 3000 {
			key := fmt.Sprintf("/r/%04d", random.IntN(4000))
			if round%2 == 1 && random.IntN(10) > 0 {
				require.Equal(t, model[key], tree.remove(key))
				delete(model, key)
				continue
			}
			obj := named(key)
			require.Equal(t, model[key], tree.set(key, obj))
			model[key] = obj
		}
		moments = append(moments, moment{tree.snapshot(), maps.Clone(model)})
	}
	for key, obj := range model {
		require.Same(t, obj, tree.get(key))
	}
	require.Nil(t, tree.get("/r/none"))
	for _, m := range moments {
		keys := slices.Sorted(maps.Keys(m.model))
		require.Equal(t, len(keys), m.snapshot.len)
		for _, start := range []string{"", "/r/0000", "/r/1001", "/r/3333\x00", "/s"} {
			at, found := slices.BinarySearch(keys, start)
			_ = found
			require.Equal(t, at, m.snapshot.rank(start), start)
			var got []string
			m.snapshot.from(start, func(it item) bool {
				require.Same(t, m.model[it.key], it.obj)
				got = append(got, it.key)
				return len(got) < 700
			})
			require.True(t, slices.Equal(keys[at:min(at+700, len(keys))], got), start)
		}
	}
}

func TestTreeEmpty(t *testing.T) {
	tree := newTree(nil)
	require.Nil(t, tree.remove("a"))
	s := tree.snapshot()
	require.Nil(t, tree.set("a", named("a")))
	require.NotNil(t, tree.remove("a"))
	require.Zero(t, s.rank("z"))
	require.Zero(t, tree.snapshot().len)
	require.Equal(t, "a0", endOf("a/"))
	require.Equal(t, "b", endOf("a\xff"))
}

// TestIndex compares the index with an iteration over all watchers.
func TestIndex(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, seed))
	var x index
	var all []*Watcher
	for round := range 200 {
		if len(all) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(all))
			x.remove(all[i])
			all = slices.Delete(all, i, i+1)
		} else {
			w := &Watcher{ranges: ranges{key: hashrange.Key(random.IntN(3))}, sharded: random.IntN(4) > 0}
			if !w.sharded {
				w.ranges.intervals = []hashrange.Interval{hashrange.Whole}
			}
			for range random.IntN(4) {
				a, b := random.Uint64N(1000), random.Uint64N(1000)
				w.ranges.intervals = append(w.ranges.intervals, hashrange.Interval{First: min(a, b), Last: max(a, b)})
			}
			w.ranges.intervals = hashrange.Disjoint(w.ranges.intervals)
			x.add(w)
			all = append(all, w)
		}
		require.Equal(t, len(all), x.watchers)
		for range 20 {
			h := hashes{random.Uint64N(1000), random.Uint64N(1000), random.Uint64N(1000)}
			want := map[*Watcher]int{}
			for _, w := range all {
				if w.ranges.match(h) {
					want[w] = 1
				}
			}
			got := map[*Watcher]int{}
			for _, w := range x.find(h, nil) {
				got[w]++
			}
			require.Equal(t, want, got, "round %d", round)
		}
	}
}

// TestSelectorByCluster verifies that objects are divided by their logical clusters.
func TestSelectorByCluster(t *testing.T) {
	const parts = 3
	for i := range 100 {
		obj := named(fmt.Sprint(i))
		var in []int
		for p := range parts {
			selector, err := NewSelector(part(hashrange.Cluster, p, parts))
			require.NoError(t, err)
			matches, err := selector.DeepCopySelector().Matches(obj)
			require.NoError(t, err)
			if matches {
				in = append(in, p)
			}
		}
		require.Equal(t, []int{int(hashrange.Hash(fmt.Sprint("of-", i)) / (^uint64(0) / parts))}, in)
	}
}

// FuzzSelector compares our matching with upstream's.
func FuzzSelector(f *testing.F) {
	f.Add("shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')", "a")
	f.Add("shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')", "b")
	f.Add("shardRange(object.metadata.namespace, '0x0000000000000001', '0xffffffffffffffff')", "c")
	f.Add("shardRange(object.metadata.uid, '0x0000000000000000', '0x4000000000000000') || shardRange(object.metadata.uid, '0x3000000000000000', '0xf000000000000000')", "d")
	f.Add("shardRange(object.metadata.uid,'0x0000000000000000','0x1000000000000000')||A()", "e")
	f.Add("shardRange(object.metadata.namespace,'0x0000000000000000','0x0000000000000001')", "")
	f.Fuzz(func(t *testing.T, expression, name string) {
		theirs, err := parser.Parse(expression)
		if err != nil {
			return
		}
		ours, err := NewSelector(theirs)
		require.NoError(t, err)
		require.Equal(t, theirs.String(), ours.String())
		for i := range 20 {
			obj := named(strings.Repeat(name, i) + fmt.Sprint(i))
			want, err := theirs.Matches(obj)
			require.NoError(t, err)
			got, err := ours.Matches(obj)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}

func TestMatchAllocates(t *testing.T) {
	for _, key := range []hashrange.Key{hashrange.UID, hashrange.Namespace, hashrange.Cluster} {
		selector, err := NewSelector(part(key, 1, 3))
		require.NoError(t, err)
		obj := named("one")
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = selector.Matches(obj) }))
	}
}

func TestHistory(t *testing.T) {
	l := history{max: defaultMaxHistory}
	l.reset(100)
	for i := range 1000 {
		l.add(&event{version: 101 + uint64(i)*2})
	}
	require.Equal(t, 1000, l.len())
	require.EqualValues(t, 100, l.floor)
	require.Equal(t, l.first, l.after(l.floor))
	require.Equal(t, l.next, l.after(5000))
	n := l.after(1500)
	require.EqualValues(t, 1501, l.at(n).version)
	require.EqualValues(t, 1503, l.at(l.after(1501)).version)
	l.reset(5000)
	require.Zero(t, l.len())
	require.EqualValues(t, 5000, l.floor)
}

// TestHistoryExpires verifies that events expire and memory is released without new events.
func TestHistoryExpires(t *testing.T) {
	l := history{max: defaultMaxHistory}
	began := time.Now()
	l.reset(0)
	for i := range 1000 {
		l.add(&event{version: uint64(i) + 1, time: began.Add(time.Duration(i) * 100 * time.Millisecond)})
	}
	require.True(t, l.cut.IsZero(), "cut must not be set if only expired events were dropped")
	require.Equal(t, 751, l.len())
	again := l.expire(began.Add(120 * time.Second))
	require.Equal(t, 550, l.len())
	require.True(t, again.Equal(began.Add(120*time.Second)), "%s", again)
	require.Zero(t, l.expire(began.Add(time.Hour)))
	require.Equal(t, historyMin, l.len())
	require.Len(t, l.ring, historyMin)
	require.EqualValues(t, 1000-historyMin, l.floor)
	require.EqualValues(t, 1000, l.at(l.next-1).version)
}

// TestHistoryOfLargeObjects verifies that large objects are dropped before they expire.
func TestHistoryOfLargeObjects(t *testing.T) {
	const many, bytes = 3000, 100 << 10
	l := history{max: defaultMaxHistory}
	l.reset(0)
	now := time.Now()
	add := func() {
		e := &event{version: l.next + 1, time: now, obj: sized(bytes)}
		e.bytes = bytesOf(e.obj)
		l.add(e)
	}
	for range many {
		add()
		require.LessOrEqual(t, l.bytes, int64(historyBytes))
		require.EqualValues(t, l.len()*bytes, l.bytes)
	}
	require.Equal(t, historyBytes/bytes, l.len())
	require.True(t, l.cut.Equal(now), "the time of the dropped events must be recorded")
	require.EqualValues(t, many-l.len(), l.floor)
	l.expire(now.Add(time.Hour))
	require.EqualValues(t, historyMin*bytes, l.bytes)
	l.reset(many)
	require.Zero(t, l.bytes)

	require.Greater(t, bytesOf(&corev1.ConfigMap{Data: map[string]string{"text": strings.Repeat("x", bytes)}}), int64(bytes))
	require.Zero(t, bytesOf(&unstructured.Unstructured{}))
}

// sized is an object that reports its size, like packed objects.
type sized int64

func (s sized) Bytes() int64                     { return int64(s) }
func (s sized) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (s sized) DeepCopyObject() runtime.Object   { return s }

// TestKeptSnapshots verifies that unused snapshots expire, and those followed by many writes.
func TestKeptSnapshots(t *testing.T) {
	k := keptSnapshots{}
	now := time.Now()
	s := newTree(nil).snapshot()
	has := func() (versions []uint64) {
		for version := range k {
			versions = append(versions, version)
		}
		slices.Sort(versions)
		return versions
	}
	for n := range uint64(4) {
		k.add(n+1, s, now, int64(n)*keptBytes/2)
	}
	k.expire(now, keptBytes*3/2)
	require.Equal(t, []uint64{2, 3, 4}, has())
	k.expire(now, keptBytes*3/2+1)
	require.Equal(t, []uint64{3, 4}, has())
	require.Nil(t, k.get(2, now))
	require.Same(t, s, k.get(4, now.Add(keptTime)))
	k.expire(now.Add(keptTime+1), keptBytes*2)
	require.Equal(t, []uint64{4}, has())
	k.expire(now.Add(keptTime+1), keptBytes*3)
	require.Empty(t, has())
	k.add(5, s, now, keptBytes*3)
	k.expire(now, keptBytes*4)
	require.Equal(t, []uint64{5}, has())
	k.expire(now, keptBytes*5)
	require.Empty(t, has())
}

// TestEventTimesNeverDecrease verifies the times of events for the watch cache.
func TestEventTimesNeverDecrease(t *testing.T) {
	f := filled(t, "a")
	at := func(version int) time.Time {
		e := f.eventOf(watch.Event{Type: watch.Modified, Object: versioned("a", version)})
		obj := f.aged(e)
		require.Same(t, e.obj, obj.(storage.WatchEventWithRecordTime).Unwrap())
		require.Equal(t, e.obj, obj.(metav1.ObjectMetaAccessor).GetObjectMeta())
		return obj.(storage.WatchEventWithRecordTime).RecordTime()
	}
	first := at(11)
	require.GreaterOrEqual(t, at(12).Sub(first), aging)
}

// TestExpired verifies that etcd serves watches from versions that the history has dropped early.
func TestExpired(t *testing.T) {
	f := filled(t, "a")
	require.True(t, apierrors.IsResourceExpired(f.Expired(1)))
	f.history.cut = time.Now()
	require.NoError(t, f.Expired(1))
	f.history.cut = time.Now().Add(-historyTime)
	require.True(t, apierrors.IsResourceExpired(f.Expired(1)))
}
