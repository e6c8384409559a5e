package cacheserver_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/cacheserver/verify"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/push"
)

// often is an interval at which tests look at a state, and have servers look at it.
const often = 50 * time.Millisecond

// replicate runs the replication of a shard until stop is called.
func replicate(t *testing.T, shard *testShard, cache *cacheServer, change ...func(*push.Config)) (config push.Config, stop func()) {
	t.Helper()
	config = replicationConfig(t, shard, cache)
	for _, f := range change {
		f(&config)
	}
	return config, startPush(t, config).stop
}

func startPush(t *testing.T, config push.Config) *instance {
	t.Helper()
	controller, err := push.NewPushController(config)
	require.NoError(t, err)
	return start(t, "", controller.Run)
}

// startsOver returns how often the replication of a test has read everything again.
func startsOver(t *testing.T, cache *cacheServer) float64 {
	t.Helper()
	return counted(t, cache.pushes, "shardplane_replication_restarts_total", map[string]string{"cache": t.Name()})
}

// counted returns the sum of the series of a counter that have the labels.
func counted(t *testing.T, of prometheus.Gatherer, name string, labels map[string]string) (sum float64) {
	t.Helper()
	for _, metric := range series(t, of, name, labels) {
		sum += metric.GetCounter().GetValue()
	}
	return sum
}

// series returns those of a metric that have the labels.
func series(t *testing.T, of prometheus.Gatherer, name string, labels map[string]string) (all []*dto.Metric) {
	t.Helper()
	families, err := of.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			has := map[string]string{}
			for _, pair := range metric.GetLabel() {
				has[pair.GetName()] = pair.GetValue()
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(labels)), func(label string) bool { return has[label] != labels[label] }) {
				all = append(all, metric)
			}
		}
	}
	return all
}

func replicationConfig(t testing.TB, shard *testShard, cache *cacheServer) push.Config {
	t.Helper()
	config := push.Config{
		Table: tableOf(t, slices.DeleteFunc(replication.Defaults(), func(r replication.Resource) bool {
			return r.Group == rbacv1.GroupName || r.Group == admissionregistrationv1.GroupName // the test's shards serve no built-in kinds
		})...),
		Shard:     shard.name,
		CacheName: t.Name(),
		Local:     shard.f,
		Cache:     cache.f,
		// A loss must be detected rather than found by a periodic comparison.
		AlertInterval:   often,
		RemovalInterval: often,
	}
	if cache.pushes != nil {
		config.Metrics = cache.pushes
	}
	return config
}

func tableOf(t testing.TB, resources ...replication.Resource) *replication.Table {
	t.Helper()
	table, err := replication.NewTable(resources...)
	require.NoError(t, err)
	return table
}

// requireReplicas waits until the cache server has exactly these shards, and
// nothing in it differs from the shards.
func requireReplicas(t *testing.T, cache *cacheServer, want []string, configs ...push.Config) {
	t.Helper()
	slices.Sort(want)
	waitFor(t, "the replicas", func() error {
		list, err := in(t, cache.f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if got := slices.Sorted(slices.Values(names(list))); !slices.Equal(want, got) {
			return fmt.Errorf("want %v, got %v", want, got)
		}
		return nil
	})
	for _, config := range configs {
		requireTrue(t, config)
	}
}

// differences compares everything that is replicated.
func differences(t *testing.T, config push.Config) (all []verify.Difference) {
	t.Helper()
	lines, _ := config.Table.Lines()
	for _, line := range lines {
		found, err := verify.Compare(t.Context(), verify.Config{Shard: config.Shard, Local: config.Local, Cache: config.Cache}, line.Resource, func(int, int) {})
		require.NoError(t, err)
		all = append(all, found...)
	}
	return all
}

func requireTrue(t *testing.T, config push.Config) {
	t.Helper()
	waitFor(t, "the replicas equal the objects", func() error {
		if found := differences(t, config); len(found) > 0 {
			return fmt.Errorf("%v", found)
		}
		return nil
	})
}

func TestReplication(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	amber, blue := newTestShard(t, "amber"), newTestShard(t, "blue")
	amberShards := in(t, amber.f, "root", shardsGVR)
	create(t, amberShards, object(shardsGVR, "Shard", "early", map[string]any{"baseURL": "https://amber"}))
	// The periodic comparisons must not mistake any of this for a loss of data.
	t.Cleanup(func() { require.Zero(t, startsOver(t, cache)) })

	amberConfig, _ := replicate(t, amber, cache)
	blueConfig, _ := replicate(t, blue, cache)
	create(t, amberShards, object(shardsGVR, "Shard", "same", map[string]any{"baseURL": "https://amber"}))
	create(t, in(t, blue.f, "root", shardsGVR), object(shardsGVR, "Shard", "same", map[string]any{"baseURL": "https://blue"}))
	create(t, in(t, blue.f, "other", shardsGVR), object(shardsGVR, "Shard", "same", map[string]any{"baseURL": "https://blue2"}))
	want := []string{"amber|root|early", "amber|root|same", "blue|root|same", "blue|other|same"}
	requireReplicas(t, cache, want, amberConfig, blueConfig)

	// The content of a replica.
	source := mustGet(t, amberShards, "same")
	replicas := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	replica := mustGet(t, replicas, "same")
	require.Equal(t, map[string]string{
		"kcp.io/shard":                           "amber",
		"kcp.io/cluster":                         "root",
		"cache.kcp.io/original-resource-version": source.GetResourceVersion(),
		"cache.kcp.io/original-resource-UID":     string(source.GetUID()),
	}, replica.GetAnnotations())
	requireSame(t, source, replica)

	t.Run("changes including status and annotations", func(t *testing.T) {
		mustPatch(t, amberShards, "same", `{"metadata":{"annotations":{"kcp.io/path":"root"},"labels":{"l":"v"},"finalizers":["test/held"]},"spec":{"externalURL":"https://new"}}`)
		eventually(t, "the change is replicated", func() bool {
			replica := mustGet(t, replicas, "same")
			url, _, _ := unstructured.NestedString(replica.Object, "spec", "externalURL")
			return url == "https://new" && replica.GetAnnotations()["kcp.io/path"] == "root" && replica.GetLabels()["l"] == "v" && slices.Equal(replica.GetFinalizers(), []string{"test/held"})
		})
	})
	t.Run("annotation of objects with a deletion timestamp", func(t *testing.T) {
		require.NoError(t, amberShards.Delete(t.Context(), "same", metav1.DeleteOptions{}))
		eventually(t, "the replica has the annotation", func() bool {
			replica := mustGet(t, replicas, "same")
			return replica.GetAnnotations()["cache.shardplane.io/deleting"] != ""
		})
		source := mustGet(t, amberShards, "same")
		replica := mustGet(t, replicas, "same")
		require.Equal(t, source.GetDeletionTimestamp().UTC().Format(time.RFC3339), replica.GetAnnotations()["cache.shardplane.io/deleting"])
		require.Equal(t, source.GetFinalizers(), replica.GetFinalizers())
		requireReplicas(t, cache, want, amberConfig)
		mustPatch(t, amberShards, "same", `{"metadata":{"finalizers":null}}`)
		requireReplicas(t, cache, []string{"amber|root|early", "blue|root|same", "blue|other|same"}, amberConfig)
		create(t, amberShards, object(shardsGVR, "Shard", "same", nil))
		requireReplicas(t, cache, want, amberConfig)
	})
	t.Run("repair of an edited replica", func(t *testing.T) {
		mustPatch(t, replicas, "same", `{"spec":{"baseURL":"https://evil"},"extra":1,"metadata":{"labels":{"x":"y"},"finalizers":["a/b"],"annotations":{"cache.shardplane.io/deleting":"x"}}}`)
		requireTrue(t, amberConfig)
	})
	t.Run("replicas of a shard that is not running", func(t *testing.T) {
		create(t, in(t, cache.f.Shard("green"), "root", shardsGVR), object(shardsGVR, "Shard", "same", nil))
		requireReplicas(t, cache, append(want, "green|root|same"), amberConfig, blueConfig)
	})
}

// requireSame checks that a replica equals its object, except for the annotations of replicas.
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

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestReplicationSurvivesRestarts checks that changes during the downtime of a server or of the controller are
// replicated afterwards, and that Compare reports them until then.
func TestReplicationSurvivesRestarts(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	var want []string
	for i := range 5 {
		name := fmt.Sprintf("s-%02d", i)
		create(t, shards, object(shardsGVR, "Shard", name, map[string]any{"baseURL": "https://x"}))
		want = append(want, "amber|root|"+name)
	}
	config, stop := replicate(t, amber, cache)
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("Changes while the controller is down")
	stop()
	require.NoError(t, shards.Delete(t.Context(), "s-01", metav1.DeleteOptions{}))
	mustPatch(t, shards, "s-02", `{"spec":{"baseURL":"https://y"}}`)
	require.NoError(t, in(t, cache.f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "s-03", metav1.DeleteOptions{}))
	problems := map[string]replication.Problem{}
	for _, difference := range differences(t, config) {
		problems[difference.Key.String()] = difference.Problem
		require.Equal(t, "shards.core.kcp.io", difference.Resource.String())
	}
	require.Equal(t, map[string]replication.Problem{
		"root|s-01": replication.ProblemOrphaned,
		"root|s-02": replication.ProblemDifferent,
		"root|s-03": replication.ProblemMissing,
	}, problems)
	want = slices.DeleteFunc(want, func(name string) bool { return name == "amber|root|s-01" })
	config, _ = replicate(t, amber, cache)
	requireReplicas(t, cache, slices.Clone(want), config)

	t.Log("Both servers restart, and the cache server has lost its data")
	cache.stop()
	amber.stop()
	amber.start(t)
	create(t, shards, object(shardsGVR, "Shard", "after-restart", nil))
	want = append(want, "amber|root|after-restart")
	cache.dataDir = t.TempDir()
	cache.start(t)
	requireReplicas(t, cache, slices.Clone(want), config)
}
