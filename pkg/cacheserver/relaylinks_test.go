package cacheserver_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/test/harness"
)

// TestRelayLoop has cache servers relay from each other in a loop, and one behind it: each replica goes round
// once, and not farther than it may.
func TestRelayLoop(t *testing.T) {
	regions := runRegions(t, map[string][]string{"a": {"c"}, "b": {"a"}, "c": {"b"}, "d": {"c"}, "e": {"d"}})
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "one", nil))
	a, d := regions["a"], regions["d"]
	a.push(t, amber)
	requireReplicas(t, d.cacheServer, []string{"amber|root|one"})
	requireMark(t, regions["b"], a, "amber", "a")
	requireMark(t, regions["c"], a, "amber", "a", "b")
	requireMark(t, d, a, "amber", "a", "b", "c")
	requireMark(t, a, a, "amber")

	t.Log("what has lost its data gets it from the shard, and not back from the others")
	a.stop()
	a.dataDir = t.TempDir()
	a.start(t)
	requireReplicas(t, a.cacheServer, []string{"amber|root|one"})
	require.NoError(t, shards.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	create(t, shards, object(shardsGVR, "Shard", "two", nil))
	for _, name := range []string{"a", "b", "c", "d"} {
		requireReplicas(t, regions[name].cacheServer, []string{"amber|root|two"})
	}
	requireMark(t, d, a, "amber", "a", "b", "c")
	requireMark(t, a, a, "amber")
	requireReplicas(t, regions["e"].cacheServer, nil)
	require.Empty(t, markAt(t, regions["e"], "amber").Resources)
}

// deletions notes which replicas a reader of a cache server hears to be deleted.
type deletions struct {
	mu   sync.Mutex
	told []string
}

func newDeletions(t *testing.T, r *region) *deletions {
	t.Helper()
	d := &deletions{}
	informer := kinds.Shards.Informer(r.f.Shard("*").Wildcard(), client.InformerOptions[*corev1alpha1.Shard]{})
	informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{OnDelete: func(shard *corev1alpha1.Shard, _ bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.told = append(d.told, shard.Name)
	}})
	start(t, "", informer.Run)
	return d
}

func (d *deletions) requireNone(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Empty(t, d.told)
}

// TestRelayLinks has links between regions break, and cache servers lose their data: each region goes on with what
// it knows, and has everything again afterwards, without anything being deleted in between that is there.
func TestRelayLinks(t *testing.T) {
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}, "far": {"us"}})
	eu, us, far := regions["eu"], regions["us"], regions["far"]
	amber, blue := newTestShard(t, "amber"), newTestShard(t, "blue")
	shards, own := in(t, amber.f, "root", shardsGVR), in(t, blue.f, "root", shardsGVR)
	want := []string{}
	for n := range 20 {
		name := fmt.Sprintf("s-%02d", n)
		create(t, shards, object(shardsGVR, "Shard", name, map[string]any{"baseURL": "https://x"}))
		want = append(want, "amber|root|"+name)
	}
	config, stopPushing := replicate(t, amber, eu.cacheServer, verifyOften, withoutAudits, markOften)
	us.push(t, blue)
	requireReplicas(t, far.cacheServer, want)
	requireMark(t, far, eu, "amber", "eu", "us")
	lost := newDeletions(t, far)

	t.Log("the link is down: the region goes on, and keeps what it knows")
	eu.stop()
	create(t, own, object(shardsGVR, "Shard", "own", nil))
	create(t, shards, object(shardsGVR, "Shard", "meanwhile", nil))
	requireReplicas(t, far.cacheServer, append(append([]string{}, want...), "blue|root|own"))
	lost.requireNone(t)
	want = append(want, "amber|root|meanwhile", "blue|root|own")
	eu.start(t)
	requireReplicas(t, far.cacheServer, want)

	t.Log("where it comes from has lost its data: nothing is taken for gone")
	stopPushing()
	eu.stop()
	eu.dataDir = t.TempDir()
	eu.start(t)
	// What another shard pushes comes through, so that the relays have read what there is.
	crimson := newTestShard(t, "crimson")
	create(t, in(t, crimson.f, "root", shardsGVR), object(shardsGVR, "Shard", "other", nil))
	eu.push(t, crimson)
	want = append(want, "crimson|root|other")
	requireReplicas(t, far.cacheServer, want)
	lost.requireNone(t)
	requireReplicas(t, us.cacheServer, slices.Clone(want))
	controller, err := replication.New(config)
	require.NoError(t, err)
	start(t, "", controller.Run)
	create(t, shards, object(shardsGVR, "Shard", "later", nil))
	want = append(want, "amber|root|later")
	requireReplicas(t, far.cacheServer, want)
	requireReplicas(t, us.cacheServer, want)
	requireMark(t, far, eu, "amber", "eu", "us")
	lost.requireNone(t)

	t.Log("a relay has lost its own")
	us.stop()
	us.dataDir = t.TempDir()
	us.start(t)
	requireReplicas(t, us.cacheServer, want)
	requireReplicas(t, far.cacheServer, want)
	requireMark(t, far, eu, "amber", "eu", "us")
	lost.requireNone(t)

	t.Log("what is gone after all that is gone everywhere")
	require.NoError(t, shards.Delete(t.Context(), "later", metav1.DeleteOptions{}))
	want = slices.DeleteFunc(want, func(name string) bool { return name == "amber|root|later" })
	requireReplicas(t, far.cacheServer, want)
	requireEqual(t, eu, far, "amber", "s-00")
}

// TestRelayOfRestoredShard has a shard be set back: that its versions cannot be compared any more is known
// behind a relay, and so is what it has lost.
func TestRelayOfRestoredShard(t *testing.T) {
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"], regions["us"]
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "kept", map[string]any{"baseURL": "https://x"}))
	config := replicationConfig(t, amber, eu.cacheServer)
	markOften(&config)
	controller, err := replication.New(config)
	require.NoError(t, err)
	replicating := start(t, "", controller.Run)
	requireReplicas(t, us.cacheServer, []string{"amber|root|kept"})
	for n := range 30 {
		create(t, shards, object(shardsGVR, "Shard", fmt.Sprintf("lost-%d", n), nil))
	}
	eventually(t, "all are relayed", func() bool { return markAt(t, us, "amber").Resources[shardsResource].Count == 31 })
	requireMark(t, us, eu, "amber", "eu")
	before := markAt(t, us, "amber")

	replicating.stop()
	amber.stop()
	amber.dataDir = t.TempDir()
	amber.start(t)
	create(t, shards, object(shardsGVR, "Shard", "kept", map[string]any{"baseURL": "https://restored"}))
	if controller, err = replication.New(config); err != nil {
		t.Fatal(err)
	}
	start(t, "", controller.Run)
	requireReplicas(t, us.cacheServer, []string{"amber|root|kept"})
	eventually(t, "the epoch is a later one", func() bool { return markAt(t, us, "amber").Epoch > before.Epoch })
	requireMark(t, us, eu, "amber", "eu")
	requireEqual(t, eu, us, "amber", "kept")
}

// TestRelayToPushed has a shard begin to push to a cache server that relays it: then that is what counts.
func TestRelayToPushed(t *testing.T) {
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"], regions["us"]
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "public", nil))
	create(t, shards, regional(object(shardsGVR, "Shard", "secret", nil)))
	eu.push(t, amber)
	requireReplicas(t, us.cacheServer, []string{"amber|root|public"})
	requireMark(t, us, eu, "amber", "eu")
	us.push(t, amber)
	requireReplicas(t, us.cacheServer, []string{"amber|root|public", "amber|root|secret"})
	requireMark(t, us, eu, "amber")
	_, err := shards.Patch(t.Context(), "public", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://y"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	requireEqual(t, eu, us, "amber", "public")
	requireMark(t, us, eu, "amber")
	requireReplicas(t, us.cacheServer, []string{"amber|root|public", "amber|root|secret"})
}

// TestReadersKeepWhatIsRegional has readers come from the cache server of a region to one that relays from it, which
// does not have what is regional: it is not gone.
func TestReadersKeepWhatIsRegional(t *testing.T) {
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"], regions["us"]
	w := &twoCaches{a: eu.cacheServer, b: us.cacheServer, amber: newTestShard(t, "amber")}
	w.shards = in(t, w.amber.f, "root", shardsGVR)
	for _, name := range []string{"one", "two"} {
		create(t, w.shards, object(shardsGVR, "Shard", name, map[string]any{"baseURL": "https://x"}))
	}
	create(t, w.shards, regional(object(shardsGVR, "Shard", "secret", nil)))
	eu.push(t, w.amber)
	requireReplicas(t, us.cacheServer, []string{"amber|root|one", "amber|root|two"})
	w.read(t)
	w.waitFor(t, "the reader has all", func() error { return w.has(3) })
	requireMark(t, us, eu, "amber", "eu")
	w.news()

	eu.stop()
	w.waitFor(t, "another cache is read", func() error {
		if name := w.caches.Name(); name != "b" {
			return errors.New(name)
		}
		return w.informer.LastError()
	})
	// What comes of a shard of the other region tells that all of it was read.
	create(t, in(t, us.f.Shard("blue"), "root", shardsGVR), object(shardsGVR, "Shard", "other", map[string]any{"baseURL": "https://x"}))
	w.waitTold(t, "add other")
	require.Equal(t, []string{"add other"}, w.news())

	t.Log("they come back, and what has gone meanwhile goes, and what is regional, too")
	require.NoError(t, w.shards.Delete(t.Context(), "two", metav1.DeleteOptions{}))
	require.NoError(t, w.shards.Delete(t.Context(), "secret", metav1.DeleteOptions{}))
	eu.start(t)
	requireReplicas(t, us.cacheServer, []string{"amber|root|one", "blue|root|other"})
	w.waitTold(t, "delete two")
	w.waitTold(t, "delete secret")
}

// TestRelayRefused has a relay lead to its own cache server, by another name: it says so, and serves.
func TestRelayRefused(t *testing.T) {
	checkLeaks(t)
	eu := &region{name: "eu", cacheServer: &cacheServer{pki: newPKI(t), dataDir: t.TempDir(), port: harness.FreePort(t)}}
	file := writeFile(t, "relays.yaml", fmt.Sprintf("relays:\n- {from: {name: global, kubeconfig: %s}}\n", writeKubeconfig(t, eu.pki, fmt.Sprintf("https://127.0.0.1:%d", eu.port))))
	eu.change = append(eu.change, func(o *cacheserver.Options) { o.Name, o.RelayConfig = "eu", file })
	eu.run(t)
	eventually(t, "it is shown", func() bool { return measured(t, "shardplane_relay_up", map[string]string{"from": "global"}) == 0 })
	create(t, in(t, eu.f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))

	o := eu.options(t)
	o.Name = "global"
	require.ErrorContains(t, o.Complete().Validate(), "--relay-config: "+file+": relays[0] (\"global\"): from.name: it is the name of this cache server")
	o.Name = "a/b"
	require.ErrorContains(t, o.Complete().Validate(), "--cache-name \"a/b\" is none")
}

// TestReaders holds that who is a reader reads everything, and writes nothing.
func TestReaders(t *testing.T) {
	cache := newCacheServer(t)
	create(t, in(t, cache.f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	config := cache.pki.user(t, cache.url, "us", "shardplane:cache:readers")
	reader := factory(t, config)
	list, err := in(t, reader.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	status, body := get(t, reader.HTTPClient(), cache.url+"/services/cache/shards/amber/digests")
	require.Equal(t, http.StatusOK, status, body)
	one := in(t, reader.Shard("amber"), "root", shardsGVR)
	_, err = one.Create(t.Context(), object(shardsGVR, "Shard", "two", nil), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	_, err = one.Update(t.Context(), &list.Items[0], metav1.UpdateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.True(t, apierrors.IsForbidden(one.Delete(t.Context(), "one", metav1.DeleteOptions{})))
	status, _ = get(t, reader.HTTPClient(), cache.url+"/metrics")
	require.Equal(t, http.StatusForbidden, status)

	forged := rest.AnonymousClientConfig(config)
	forged.BearerToken = "system:shardplane:relay"
	status, _ = get(t, factory(t, forged).HTTPClient(), cache.url+"/services/cache/shards/amber/digests")
	require.Contains(t, []int{http.StatusForbidden, http.StatusUnauthorized}, status)
}
