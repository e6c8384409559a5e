package shards_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/test/background"
)

type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf(format, args...))
}

func (e *events) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.all = nil }()
	return e.all
}

func (e *events) handler() client.Handler[configMap] {
	return client.Handler[configMap]{
		OnAdd:    func(obj configMap, _ bool) { e.add("add %s %s", obj.Name, obj.Data["content"]) },
		OnUpdate: func(old, obj configMap) { e.add("update %s %s>%s", obj.Name, old.Data["content"], obj.Data["content"]) },
		OnDelete: func(last configMap, tombstone bool) {
			e.add("delete %s %s %t", last.Name, last.Data["content"], tombstone)
		},
		OnLeave: func(last configMap, why client.Leave) { e.add("leave %s %s %s", last.Name, last.Data["content"], why) },
	}
}

// TestShardChanges tests all changes of Shard objects.
func TestShardChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	put(t, one, object("a", "x", "1"))
	w.announce(t, "one", one.URL+"/")
	notified, keys := &events{}, &events{}
	m, _ := startMulti(t, w.source, options{}, func(m *shards.Multi[configMap]) {
		m.AddEventHandler(notified.handler())
		m.AddKeyHandler(func(key client.Key) { keys.add("%s", key) }, func(key client.Key) { keys.add("left %s", key) })
	})
	waitSynced(t, m, shards.All)
	has(t, m, keyOf("a", "x"), "one", "1")
	require.Empty(t, m.Missing())
	require.Equal(t, []string{"add x 1"}, notified.take())
	require.Equal(t, []string{"one|a|default/x"}, keys.take())
	_, err := m.Lister().Get(keyOf("a", "none"))
	require.True(t, apierrors.IsNotFound(err), err)
	require.Equal(t, "one", m.Lister().ShardOf("a"))
	require.NotNil(t, m.Of("one"))
	require.Nil(t, m.Of("two"))

	put(t, two, object("b", "y", "1"))
	w.announce(t, "two", two.URL)
	has(t, m, keyOf("b", "y"), "two", "1")
	require.Equal(t, []string{"add y 1"}, notified.take())
	late := &events{}
	require.True(t, m.AddEventHandler(late.handler()).HasSynced())
	require.ElementsMatch(t, []string{"add x 1", "add y 1"}, late.take(), "a late handler must be notified of all objects")

	// Another address with the same content causes no events, and following events are received.
	w.announce(t, "one", alias(t, one))
	eventually(t, func() bool { lists, watches := one.Requests(); return lists+watches > 1 && m.Of("one").Current() }, "moved")
	put(t, one, object("a", "x", "2"))
	has(t, m, keyOf("a", "x"), "one", "2")
	require.Equal(t, []string{"update x 1>2"}, notified.take())

	// Another address with other content: the differences are received.
	other := clienttest.New(t, kinds.Scheme)
	put(t, other, object("a", "z", "1"))
	for range 5 { // so that its version exceeds the former one's
		put(t, other, object("c", "passing", "1"))
		remove(t, other, "c", "passing")
	}
	w.announce(t, "one", other.URL)
	has(t, m, keyOf("a", "z"), "one", "1")
	eventually(t, func() bool { return m.Lister().Len() == 2 }, "x is removed")
	require.ElementsMatch(t, []string{"add z 1", "delete x 2 true"}, notified.take())

	// An invalid address is ignored.
	w.announce(t, "one", "://")
	eventually(t, func() bool { return len(m.Missing()) == 1 }, "missing")
	missing := m.Missing()[0]
	require.Equal(t, "one", missing.Shard)
	require.ErrorContains(t, missing.Why, "spec.baseURL")
	put(t, other, object("a", "z", "2"))
	has(t, m, keyOf("a", "z"), "one", "2")
	w.announce(t, "one", other.URL)
	eventually(t, func() bool { return len(m.Missing()) == 0 }, "usable again")
	require.Equal(t, []string{"update z 1>2"}, notified.take())

	keys.take()
	w.withdraw(t, "one")
	eventually(t, func() bool { return m.Of("one") == nil }, "the shard is removed")
	require.Equal(t, []string{"leave z 2 ShardRemoved"}, notified.take())
	require.Equal(t, []string{"left one|a|default/z"}, keys.take(), "a removed shard must not be notified as a change")
	_, err = m.Lister().Get(keyOf("a", "z"))
	require.True(t, apierrors.IsNotFound(err), err)
	require.Empty(t, m.Lister().ShardOf("a"))
	w.announce(t, "one", other.URL)
	has(t, m, keyOf("a", "z"), "one", "2")
	require.Equal(t, []string{"add z 2"}, notified.take())
}

// TestMigration migrates a logical cluster: handlers are notified of updates, not of deletions.
func TestMigration(t *testing.T) {
	t.Parallel()
	one, two := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	for _, name := range []string{"x", "y"} {
		put(t, one, object("a", name, "one", "uid-"+"of-x"))
	}
	put(t, one, object("b", "still", "here"))
	notified := &events{}
	m, _ := startMulti(t, shards.Static(map[string]*rest.Config{"one": one.ClientConfig(), "two": two.ClientConfig()}), options{
		Informer: client.InformerOptions[configMap]{Indexers: map[string]client.IndexFunc[configMap]{
			"content": func(obj configMap) []string { return []string{obj.Data["content"]} },
		}},
	}, func(m *shards.Multi[configMap]) { m.AddEventHandler(notified.handler()) })
	waitSynced(t, m, shards.All)
	notified.take()

	put(t, two, object("a", "x", "two", "uid-of-x"))
	has(t, m, keyOf("a", "x"), "two", "two")
	has(t, m, keyOf("a", "y"), "one", "one")
	require.Equal(t, []string{"update x one>two"}, notified.take())
	require.Equal(t, 3, m.Lister().Len())
	require.Len(t, m.Lister().List(nil), 3)
	require.Len(t, m.Lister().InCluster("a", nil), 2)
	require.ElementsMatch(t, []string{"a", "b"}, clusters(m))
	of := func(content string) int {
		found, err := m.Lister().ByIndex("content", content)
		require.NoError(t, err)
		return len(found)
	}
	require.Equal(t, 1, of("two"))
	require.Equal(t, 1, of("one"), "the object x of shard one must not be counted")
	late := &events{}
	m.AddEventHandler(late.handler())
	require.ElementsMatch(t, []string{"add x two", "add y one", "add still here"}, late.take())

	put(t, one, object("a", "x", "old")) // no events
	put(t, two, object("a", "y", "two", "another"))
	has(t, m, keyOf("a", "y"), "two", "two")
	require.Equal(t, []string{"delete y one true", "add y two"}, notified.take(), "the object was replaced by another one with the same name")

	remove(t, one, "a", "x")
	remove(t, one, "a", "y")
	put(t, two, object("a", "x", "three"))
	has(t, m, keyOf("a", "x"), "two", "three")
	eventually(t, func() bool { return len(m.Of("one").Lister().Cluster("a").List(nil)) == 0 }, "shard one has no objects")
	require.Equal(t, []string{"update x two>three"}, notified.take())
	require.Equal(t, "two", m.Lister().ShardOf("a"))

	// The migration is canceled: the previous copy becomes valid again.
	put(t, one, object("a", "x", "back", "uid-of-x"))
	has(t, m, keyOf("a", "x"), "one", "back")
	remove(t, one, "a", "x")
	has(t, m, keyOf("a", "x"), "two", "three")
	require.Equal(t, []string{"update x three>back", "update x back>three"}, notified.take())
	remove(t, two, "a", "x")
	eventually(t, func() bool { return m.Lister().Len() == 2 }, "deleted")
	require.Equal(t, []string{"delete x three false"}, notified.take())
	_, err := m.Lister().ByIndex("none", "")
	require.ErrorContains(t, err, "no index")
}

func clusters(m *shards.Multi[configMap]) (names []string) {
	for _, name := range m.Lister().Clusters() {
		names = append(names, name.String())
	}
	return names
}

// TestUnreachable: the objects of an unreachable shard are retained, and WaitForSync returns the reason.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two, three := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	put(t, one, object("a", "x", "1"))
	put(t, two, object("b", "y", "1"))
	put(t, three, object("c", "z", "1"))
	two.Fail(http.StatusServiceUnavailable)
	three.Fail(http.StatusNotFound)
	for name, url := range map[string]string{"one": one.URL, "two": two.URL, "three": three.URL, "none": "http://plain"} {
		w.announce(t, name, url)
	}
	registry := prometheus.NewPedanticRegistry()
	m, stop := startMulti(t, w.source, options{Metrics: registry})
	added := m.AddEventHandler(client.Handler[configMap]{})
	waitSynced(t, m, shards.Reachable)
	<-added.Synced()
	require.Equal(t, 1, m.Lister().Len())
	why := map[string]string{}
	for _, missing := range m.Missing() {
		require.False(t, missing.Since.IsZero())
		require.WithinDuration(t, time.Now(), missing.Since, testTimeout)
		why[missing.Shard] = missing.Why.Error()
	}
	require.Len(t, why, 3)
	require.Contains(t, why["none"], "must be an https URL")
	require.Contains(t, why["two"], "unable to handle the request")
	require.Contains(t, why["three"], "does not serve configmaps")
	connected, err := testutil.GatherAndCount(registry, "shardplane_shards_connected", "shardplane_shards_missing", "shardplane_client_informer_objects")
	require.NoError(t, err)
	require.Equal(t, 5, connected, "two metrics of the set, and one of each of three informers")
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err = m.WaitForSync(short, shards.All)
	for _, name := range []string{"none", "two", "three"} {
		require.ErrorContains(t, err, "shard "+name+": ")
	}
	_, err = m.Lister().Get(keyOf("b", "y"))
	require.ErrorIs(t, err, client.ErrIncomplete, "the object may be on an unreachable shard")
	_, err = m.Lister().Get(keyOf("a", "x"))
	require.NoError(t, err)

	w.withdraw(t, "none")
	two.Fail(0)
	three.Fail(0)
	waitSynced(t, m, shards.All)
	eventually(t, func() bool { return len(m.Missing()) == 0 }, "all shards are reachable again")
	since := time.Now()
	two.Fail(http.StatusServiceUnavailable)
	two.Break()
	w.root.Fail(http.StatusServiceUnavailable)
	w.root.Break()
	eventually(t, func() bool { return len(m.Missing()) == 2 }, "shards two and root are unreachable")
	missing := m.Missing()
	require.Empty(t, missing[0].Shard)
	require.ErrorContains(t, missing[0].Why, "the Shard objects: ")
	require.Equal(t, "two", missing[1].Shard)
	require.False(t, missing[1].Since.Before(since))
	has(t, m, keyOf("b", "y"), "two", "1")
	_, err = m.Lister().Get(keyOf("b", "none"))
	require.True(t, apierrors.IsNotFound(err), err)
	put(t, one, object("a", "x", "2"))
	has(t, m, keyOf("a", "x"), "one", "2")
	stop()
	connected, err = testutil.GatherAndCount(registry)
	require.NoError(t, err)
	require.Zero(t, connected)
}

// TestPartition: shards are selected by labels, and the objects of deselected ones leave.
func TestPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := clienttest.New(t, kinds.Scheme)
	put(t, one, object("a", "x", "1"))
	in := func(region string) func(*corev1alpha1.Shard) {
		return func(obj *corev1alpha1.Shard) { obj.Labels = map[string]string{"region": region} }
	}
	w.announce(t, "one", one.URL, in("eu"))
	w.announce(t, "two", "https://127.0.0.1:1", in("us"))
	notified := &events{}
	ranges, err := client.PartOf(client.ByCluster, 0, 1)
	require.NoError(t, err)
	changing := client.NewChangingRanges(ranges)
	m, _ := startMulti(t, w.source, options{
		Partition: labels.SelectorFromSet(labels.Set{"region": "eu"}),
		Ranges: func(shard string) client.RangeSource {
			require.Equal(t, "one", shard)
			return changing
		},
	}, func(m *shards.Multi[configMap]) { m.AddEventHandler(notified.handler()) })
	waitSynced(t, m, shards.All)
	has(t, m, keyOf("a", "x"), "one", "1")
	changing.Set(client.Ranges{})
	eventually(t, func() bool { return m.Lister().Len() == 0 }, "no objects are loaded")
	_, err = m.Lister().Get(keyOf("a", "x"))
	require.ErrorIs(t, err, client.ErrNotOwned)
	changing.Set(ranges)
	has(t, m, keyOf("a", "x"), "one", "1")
	w.announce(t, "one", one.URL, in("us"))
	eventually(t, func() bool { return m.Of("one") == nil }, "the shard is no longer selected")
	require.Equal(t, []string{"add x 1", "leave x 1 RangeMoved", "add x 1", "leave x 1 ShardRemoved"}, notified.take())
}

// TestSources tests the other sources of shards.
func TestSources(t *testing.T) {
	t.Parallel()
	one := clienttest.New(t, kinds.Scheme)
	put(t, one, object("a", "x", "1"))
	_, err := shards.New(shards.FromAny(), kinds.ConfigMaps, options{})
	require.ErrorContains(t, err, "pass at least one to FromAny")
	dead := factoryOf(t, "https://127.0.0.1:1")
	_, err = shards.New(shards.FromAny(dead), kinds.ConfigMaps, options{Metrics: failing{}})
	require.ErrorContains(t, err, "registering the metrics")

	// The first server is unreachable. The second one is used until it fails, too.
	w, other := newWorld(t), newWorld(t)
	for _, each := range []*world{w, other} {
		each.announce(t, "one", one.URL)
	}
	m, _ := startMulti(t, shards.FromAny(dead, factoryOf(t, w.root.URL), factoryOf(t, other.root.URL)), options{Dial: shards.Access(insecure)})
	waitSynced(t, m, shards.All)
	has(t, m, keyOf("a", "x"), "one", "1")
	w.root.Fail(http.StatusServiceUnavailable)
	w.root.Break()
	other.announce(t, "two", one.URL)
	eventually(t, func() bool { return m.Of("two") != nil }, "the third server is used")

	// A cache server has the Shards of root as replicas.
	cache := clienttest.New(t, kinds.Scheme)
	replica := &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Annotations: map[string]string{"kcp.io/cluster": "root", "kcp.io/shard": "root"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: one.URL},
	}
	cache.Put(t, kinds.Shards.GroupVersionResource, replica)
	m, _ = startMulti(t, shards.FromCache(factoryOf(t, cache.URL)), options{})
	waitSynced(t, m, shards.All)
	has(t, m, keyOf("a", "x"), "one", "1")

	// Metadata only.
	meta, err := shards.NewWith(shards.Static(map[string]*rest.Config{"one": one.ClientConfig(), "unknown": nil}),
		func(scope client.Scope, o client.InformerOptions[*metav1.PartialObjectMetadata]) (*client.Informer[*metav1.PartialObjectMetadata], error) {
			return client.NewMetadataInformer(scope, kinds.ConfigMaps.GroupVersionResource, o)
		}, shards.Options[*metav1.PartialObjectMetadata]{})
	require.NoError(t, err)
	background.Run(t.Context(), t, meta.Run)
	require.NoError(t, meta.WaitForSync(t.Context(), shards.Reachable))
	require.Equal(t, 1, meta.Lister().Len())
	require.ErrorContains(t, meta.Missing()[0].Why, "no client configuration")
}

type failing struct{ prometheus.Registerer }

func (failing) Register(prometheus.Collector) error { return fmt.Errorf("no") }

// TestIndexesLater adds an index while there are shards, and another shard afterwards.
func TestIndexesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	put(t, one, object("one", "a", "same"))
	put(t, other, object("two", "a", "same"))
	w.announce(t, "shard-1", one.URL)
	m, _ := startMulti(t, w.source, options{})
	waitSynced(t, m, shards.All)
	require.True(t, m.HasSynced(shards.All))
	byContent := map[string]client.IndexFunc[configMap]{"content": func(obj configMap) []string { return []string{obj.Data["content"]} }}
	require.NoError(t, m.AddIndexers(byContent))
	require.ErrorContains(t, m.AddIndexers(byContent), "already")
	found, err := m.Lister().ByIndex("content", "same")
	require.NoError(t, err)
	require.Len(t, found, 1)
	w.announce(t, "shard-2", other.URL)
	eventually(t, func() bool {
		found, err := m.Lister().ByIndex("content", "same")
		return err == nil && len(found) == 2
	}, "the index contains objects of the new shard")
}

// TestPause: the lister returns what handlers were notified of while no handler runs.
func TestPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := clienttest.New(t, kinds.Scheme)
	w.announce(t, "shard-1", one.URL)
	notified := 0
	m, _ := startMulti(t, w.source, options{}, func(m *shards.Multi[configMap]) {
		m.AddEventHandler(client.Handler[configMap]{OnAdd: func(configMap, bool) { notified++ }})
	})
	waitSynced(t, m, shards.All)
	const objects = 200
	agrees := func() (all bool) {
		m.Pause(func() {
			if held := m.Lister().Len(); held != notified {
				t.Errorf("the handler was notified of %d objects, but %d are loaded", notified, held)
			}
			all = notified == objects
		})
		return all
	}
	for n := range objects {
		put(t, one, object("one", fmt.Sprint("a", n), ""))
		agrees()
	}
	eventually(t, agrees, "the handler is notified of all objects")
}
