package cacheserver_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

var logicalClustersGVR = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}

// seldom is an interval that no test waits for.
const seldom = time.Hour

// replicate runs the replication of a shard until stop is called.
func replicate(t *testing.T, shard *testShard, cache *cacheServer, change ...func(*replication.Config)) (config replication.Config, stop func()) {
	t.Helper()
	config = replicationConfig(t, shard, cache)
	for _, f := range change {
		f(&config)
	}
	controller, err := replication.New(config)
	require.NoError(t, err)
	i := start(t, "", controller.Run)
	return config, i.stop
}

// withoutAudits is for tests of what has to be noticed without them.
func withoutAudits(config *replication.Config) { config.AuditInterval = seldom }

// startsOver returns how often replication has read everything anew, in this
// process.
func startsOver(t *testing.T) float64 {
	t.Helper()
	return counted(t, "shardplane_replication_restarts_total", "", "")
}

// counted returns the sum of a counter in this process, of all series that have the value
// of a label.
func counted(t *testing.T, name, label, value string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	var count float64
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if label == "" || slices.ContainsFunc(metric.GetLabel(), func(pair *dto.LabelPair) bool { return pair.GetName() == label && pair.GetValue() == value }) {
				count += metric.GetCounter().GetValue()
			}
		}
	}
	return count
}

func replicationConfig(t testing.TB, shard *testShard, cache *cacheServer) replication.Config {
	t.Helper()
	return replication.Config{
		Table: tableOf(t, slices.DeleteFunc(replication.Defaults(), func(r replication.Resource) bool {
			return r.Group == rbacv1.GroupName || r.Group == admissionregistrationv1.GroupName // the test's shards serve no built-in kinds
		})...),
		Shard: shard.name,
		Local: shard.f,
		Cache: cache.f,
		// What is lost has to be noticed, not found by chance.
		ProbeInterval: seldom,
		AuditInterval: time.Second / 5,
	}
}

func tableOf(t testing.TB, resources ...replication.Resource) *replication.Table {
	t.Helper()
	table, err := replication.NewTable(resources...)
	require.NoError(t, err)
	return table
}

// requireReplicas waits until the cache server has exactly these shards, and
// nothing in it differs from the shards.
func requireReplicas(t *testing.T, cache *cacheServer, want []string, configs ...replication.Config) {
	t.Helper()
	slices.Sort(want)
	var got []string
	ok := func() bool {
		list, err := in(t, cache.f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			got = []string{err.Error()}
			return false
		}
		got = names(list)
		slices.Sort(got)
		return slices.Equal(want, got)
	}
	limit := time.Now().Add(deadline)
	for !ok() {
		require.True(t, time.Now().Before(limit), "want %v, got %v", want, got)
		<-time.After(20 * time.Millisecond) // leave the processor to the servers
	}
	for _, config := range configs {
		requireTrue(t, config)
	}
}

func requireTrue(t *testing.T, config replication.Config) {
	t.Helper()
	var found []replication.Difference
	limit := time.Now().Add(deadline)
	for {
		var err error
		found, err = replication.Compare(t.Context(), config)
		require.NoError(t, err)
		if len(found) == 0 {
			return
		}
		require.True(t, time.Now().Before(limit), "%v", found)
	}
}

func TestReplication(t *testing.T) {
	cache := newCacheServer(t)
	amber, blue := newTestShard(t, "amber"), newTestShard(t, "blue")
	amberShards := in(t, amber.f, "root", shardsGVR)
	create(t, amberShards, object(shardsGVR, "Shard", "early", map[string]any{"baseURL": "https://amber"}))
	before := startsOver(t)
	// Audits run all the while, and mistake none of this for the loss of data.
	t.Cleanup(func() { require.InDelta(t, before, startsOver(t), 0) })

	amberConfig, _ := replicate(t, amber, cache)
	blueConfig, _ := replicate(t, blue, cache)
	create(t, amberShards, object(shardsGVR, "Shard", "same", map[string]any{"baseURL": "https://amber"}))
	create(t, in(t, blue.f, "root", shardsGVR), object(shardsGVR, "Shard", "same", map[string]any{"baseURL": "https://blue"}))
	create(t, in(t, blue.f, "other", shardsGVR), object(shardsGVR, "Shard", "same", map[string]any{"baseURL": "https://blue2"}))
	want := []string{"amber|root|early", "amber|root|same", "blue|root|same", "blue|other|same"}
	requireReplicas(t, cache, want, amberConfig, blueConfig)

	// What a replica looks like.
	source, err := amberShards.Get(t.Context(), "same", metav1.GetOptions{})
	require.NoError(t, err)
	replicas := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	replica, err := replicas.Get(t.Context(), "same", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"kcp.io/shard":                           "amber",
		"kcp.io/cluster":                         "root",
		"cache.kcp.io/original-resource-version": source.GetResourceVersion(),
		"cache.kcp.io/original-resource-UID":     string(source.GetUID()),
	}, replica.GetAnnotations())
	requireSame(t, source, replica)

	t.Run("changes in the shard arrive, status and annotations too", func(t *testing.T) {
		_, err := amberShards.Patch(t.Context(), "same", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"kcp.io/path":"root"},"labels":{"l":"v"},"finalizers":["test/held"]},"spec":{"externalURL":"https://new"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		eventually(t, "the change is replicated", func() bool {
			replica, err := replicas.Get(t.Context(), "same", metav1.GetOptions{})
			require.NoError(t, err)
			url, _, _ := unstructured.NestedString(replica.Object, "spec", "externalURL")
			return url == "https://new" && replica.GetAnnotations()["kcp.io/path"] == "root" && replica.GetLabels()["l"] == "v" && slices.Equal(replica.GetFinalizers(), []string{"test/held"})
		})
	})
	t.Run("an object that is being deleted has a replica that says so, until it is gone", func(t *testing.T) {
		require.NoError(t, amberShards.Delete(t.Context(), "same", metav1.DeleteOptions{}))
		eventually(t, "the replica says it", func() bool {
			replica, err := replicas.Get(t.Context(), "same", metav1.GetOptions{})
			require.NoError(t, err)
			return replica.GetAnnotations()["cache.shardplane.io/deleting"] != ""
		})
		source, err := amberShards.Get(t.Context(), "same", metav1.GetOptions{})
		require.NoError(t, err)
		replica, err := replicas.Get(t.Context(), "same", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, source.GetDeletionTimestamp().UTC().Format(time.RFC3339), replica.GetAnnotations()["cache.shardplane.io/deleting"])
		require.Equal(t, source.GetFinalizers(), replica.GetFinalizers())
		requireReplicas(t, cache, want, amberConfig)
		_, err = amberShards.Patch(t.Context(), "same", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		requireReplicas(t, cache, []string{"amber|root|early", "blue|root|same", "blue|other|same"}, amberConfig)
		create(t, amberShards, object(shardsGVR, "Shard", "same", nil))
		requireReplicas(t, cache, want, amberConfig)
	})
	t.Run("a deleted replica comes back", func(t *testing.T) {
		require.NoError(t, replicas.Delete(t.Context(), "same", metav1.DeleteOptions{}))
		requireReplicas(t, cache, want, amberConfig)
	})
	t.Run("an edited replica is put right", func(t *testing.T) {
		_, err := replicas.Patch(t.Context(), "same", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://evil"},"extra":1,"metadata":{"labels":{"x":"y"},"finalizers":["a/b"],"annotations":{"cache.shardplane.io/deleting":"x"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		requireTrue(t, amberConfig)
	})
	t.Run("a replica that somebody holds with a finalizer", func(t *testing.T) {
		_, err := replicas.Patch(t.Context(), "early", types.MergePatchType, []byte(`{"metadata":{"finalizers":["test/held"]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		require.NoError(t, amberShards.Delete(t.Context(), "early", metav1.DeleteOptions{}))
		requireReplicas(t, cache, []string{"amber|root|same", "blue|root|same", "blue|other|same"}, amberConfig)
	})
	t.Run("a replica without an object is removed", func(t *testing.T) {
		create(t, in(t, cache.f.Shard("amber"), "nowhere", shardsGVR), object(shardsGVR, "Shard", "stray", nil))
		requireReplicas(t, cache, []string{"amber|root|same", "blue|root|same", "blue|other|same"}, amberConfig, blueConfig)
	})
	t.Run("what belongs to no shard that runs stays", func(t *testing.T) {
		create(t, in(t, cache.f.Shard("green"), "root", shardsGVR), object(shardsGVR, "Shard", "same", nil))
		requireReplicas(t, cache, []string{"amber|root|same", "blue|root|same", "blue|other|same", "green|root|same"}, amberConfig, blueConfig)
	})
}

// requireSame holds that a replica is the object, but for what says what it is a replica of.
func requireSame(t *testing.T, source, replica *unstructured.Unstructured) {
	t.Helper()
	source, replica = source.DeepCopy(), replica.DeepCopy()
	annotations := replica.GetAnnotations()
	for key := range annotations {
		if strings.HasPrefix(key, "cache.kcp.io/") || key == "kcp.io/shard" {
			delete(annotations, key)
		}
	}
	replica.SetAnnotations(annotations)
	replica.SetResourceVersion(source.GetResourceVersion())
	require.Equal(t, source.Object, replica.Object)
}

func TestReplicationOfMarkedObjects(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	clusters := in(t, amber.f, "root", logicalClustersGVR)
	replicas := in(t, cache.f.Shard("amber"), "root", logicalClustersGVR)
	create(t, clusters, object(logicalClustersGVR, "LogicalCluster", "cluster", map[string]any{"directlyDeletable": true}))
	config, _ := replicate(t, amber, cache)
	requireTrue(t, config)
	_, err := replicas.Get(t.Context(), "cluster", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	mark := func(value string) {
		_, err := clusters.Patch(t.Context(), "cluster", types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata":{"annotations":{"internal.kcp.io/replicate":%s}}}`, value)), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	mark(`"test"`)
	eventually(t, "the marked object is replicated", func() bool {
		_, err := replicas.Get(t.Context(), "cluster", metav1.GetOptions{})
		return err == nil
	})
	mark("null")
	eventually(t, "the replica of the unmarked object is gone", func() bool {
		_, err := replicas.Get(t.Context(), "cluster", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// TestReplicationOfPaths holds that replicas of what is looked for by its path say that,
// also when that is told or changed after the object itself.
func TestReplicationOfPaths(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	create(t, in(t, amber.f, "a", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	create(t, in(t, amber.f, "a", workspaceTypesGVR), object(workspaceTypesGVR, "WorkspaceType", "one", nil))
	clusters := kinds.LogicalClusters.Informer(amber.f.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{})
	start(t, "", clusters.Run)
	config, _ := replicate(t, amber, cache, withoutAudits, func(config *replication.Config) { config.LogicalClusters = clusters })
	requireReplicas(t, cache, []string{"amber|a|one"}, config)

	lc := object(logicalClustersGVR, "LogicalCluster", "cluster", nil)
	lc.SetAnnotations(map[string]string{"kcp.io/path": "root:a"})
	create(t, in(t, amber.f, "a", logicalClustersGVR), lc)
	requirePath(t, cache, "root:a")
	_, err := in(t, amber.f, "a", logicalClustersGVR).Patch(t.Context(), "cluster", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"kcp.io/path":"root:b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	requirePath(t, cache, "root:b")
	requireTrue(t, config)
	replica, err := in(t, cache.f.Shard("amber"), "a", shardsGVR).Get(t.Context(), "one", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, replica.GetAnnotations(), "kcp.io/path", "nobody looks for it by its path")
}

func requirePath(t *testing.T, cache *cacheServer, path string) {
	t.Helper()
	eventually(t, "the replica says the path "+path, func() bool {
		replica, err := in(t, cache.f.Shard("amber"), "a", workspaceTypesGVR).Get(t.Context(), "one", metav1.GetOptions{})
		require.NoError(t, err)
		return replica.GetAnnotations()["kcp.io/path"] == path
	})
}

// TestReplicationAudits holds that an audit puts right what no event tells of:
// here the selection changes, which is neither in the shard nor on the cache
// server.
func TestReplicationAudits(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "one", nil))
	create(t, shards, object(shardsGVR, "Shard", "two", nil))
	var without atomic.Value
	without.Store("")
	config, _ := replicate(t, amber, cache, func(config *replication.Config) {
		config.Table = tableOf(t, replication.Resource{
			GroupVersionResource: shardsGVR,
			Filter:               func(obj metav1.Object) bool { return obj.GetName() != without.Load() },
		})
	})
	both := []string{"amber|root|one", "amber|root|two"}
	requireReplicas(t, cache, slices.Clone(both), config)
	before := startsOver(t)
	without.Store("one")
	requireReplicas(t, cache, []string{"amber|root|two"}, config)
	require.InDelta(t, before, startsOver(t), 0, "what is known does not need to be read again")
	without.Store("")
	requireReplicas(t, cache, slices.Clone(both), config)
}

// TestReplicaIsDeletedAsCompared holds that a replica goes only if it is the one
// that was found to be left over: another writer may have put another one there.
func TestReplicaIsDeletedAsCompared(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	replicas := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "first", nil))

	// What replaces the left-over replica just before it is deleted.
	var replaced atomic.Bool
	config := rest.CopyConfig(cache.pki.master(t, cache.url))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodDelete && replaced.CompareAndSwap(false, true) {
				for _, err := range []error{
					replicas.Delete(t.Context(), "left", metav1.DeleteOptions{}),
					errorOf(replicas.Create(t.Context(), object(shardsGVR, "Shard", "left", map[string]any{"baseURL": "https://newer"}), metav1.CreateOptions{})),
				} {
					if err != nil {
						return nil, err
					}
				}
				answer, err := next.RoundTrip(req)
				if err == nil && answer.StatusCode != http.StatusConflict {
					t.Errorf("deleting a replica that has been replaced is answered with %s", answer.Status)
				}
				return answer, err
			}
			return next.RoundTrip(req)
		})
	})
	create(t, replicas, object(shardsGVR, "Shard", "left", nil))
	replicated, _ := replicate(t, amber, cache, func(c *replication.Config) { c.Cache = factory(t, config) })
	requireReplicas(t, cache, []string{"amber|root|first"}, replicated)
	require.True(t, replaced.Load())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func errorOf(_ any, err error) error { return err }

func TestReplicationSurvivesRestarts(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	var want []string
	for i := range 20 {
		name := fmt.Sprintf("s-%02d", i)
		create(t, shards, object(shardsGVR, "Shard", name, map[string]any{"baseURL": "https://x"}))
		want = append(want, "amber|root|"+name)
	}
	config, stop := replicate(t, amber, cache, withoutAudits)
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("changes while the cache server is down")
	cache.stop()
	require.NoError(t, shards.Delete(t.Context(), "s-00", metav1.DeleteOptions{}))
	create(t, shards, object(shardsGVR, "Shard", "new", nil))
	want = append(want[1:], "amber|root|new")
	cache.start(t)
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("changes while the controller is down")
	stop()
	require.NoError(t, shards.Delete(t.Context(), "s-01", metav1.DeleteOptions{}))
	_, err := shards.Patch(t.Context(), "s-02", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://y"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, in(t, cache.f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "s-03", metav1.DeleteOptions{}))
	found, err := replication.Compare(t.Context(), config)
	require.NoError(t, err)
	problems := map[string]replication.Problem{}
	for _, difference := range found {
		problems[difference.Key.String()] = difference.Problem
		require.Contains(t, difference.String(), "shards.core.kcp.io")
	}
	require.Equal(t, map[string]replication.Problem{
		"root|s-01": replication.ProblemLeftOver,
		"root|s-02": replication.ProblemDifferent,
		"root|s-03": replication.ProblemMissing,
	}, problems)
	want = want[1:]
	config, _ = replicate(t, amber, cache, withoutAudits)
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("restart of the shard")
	amber.stop()
	amber.start(t)
	create(t, shards, object(shardsGVR, "Shard", "after-restart", nil))
	want = append(want, "amber|root|after-restart")
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("the cache server loses its data")
	cache.stop()
	cache.dataDir = t.TempDir()
	cache.start(t)
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("the cache server gets other data of a higher version")
	cache.stop()
	cache.dataDir = t.TempDir()
	cache.start(t)
	// Versions of the new data soon pass those that the informer knows.
	stray := in(t, cache.f.Shard("green"), "root", workspaceTypesGVR)
	create(t, stray, object(workspaceTypesGVR, "WorkspaceType", "stray", nil))
	for i := range 100 {
		_, err := stray.Patch(t.Context(), "stray", types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"n":%d}}`, i)), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	requireReplicas(t, cache, slices.Clone(want), config)
}

func TestReplicationWaitsForTheCacheServer(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	config := replicationConfig(t, amber, cache)
	cache.stop()
	controller, err := replication.New(config)
	require.NoError(t, err)
	start(t, "", controller.Run)
	require.False(t, controller.HasSynced())
	cache.start(t)
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	eventually(t, "the controller says that it has synced", controller.HasSynced)
}

func TestReplicationEndsPromptly(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	config := replicationConfig(t, amber, cache)
	controller, err := replication.New(config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, controller.Run(ctx))

	_, err = replication.New(replication.Config{})
	require.Error(t, err)
}

func TestEveryReplicatedKindIsServed(t *testing.T) {
	cache := newCacheServer(t)
	for _, resource := range replication.Defaults() {
		_, err := in(t, cache.f.Shard("amber"), "*", resource.GroupVersionResource).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err, resource.String())
	}
}
