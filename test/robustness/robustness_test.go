package robustness

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/robustness/history"
)

var (
	seedFlag     = flag.Uint64("seed", 0, "seed of the random choices of clients and faults; 0 selects a random one")
	durationFlag = flag.Duration("duration", 0, "duration of fault injection; 0 injects each fault once")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m))
}

// compaction has a short interval, so that resource versions expire during the test.
var compaction = []string{"--etcd-compaction-interval=2s"}

// TestRobustness injects faults into every component of a cluster with two shards, and checks what
// the clients observe.
func TestRobustness(t *testing.T) {
	t.Parallel()
	components := []string{"root", "shard-1", "cache-server", "front-proxy"}
	runClusters(t, func(r *run) [][]fault {
		r.components = components
		r.cluster = harness.Start(r.t, harness.Options{
			Mode: harness.Processes, Shards: 2, Without: components,
			ExtraArgs: map[string][]string{"shard": compaction, "cache-server": compaction},
		})
		startInterrupted(r, 2)
		r.targets = targets(r.t, r.cluster)
		r.addMerging(newConn(r.t, r.cluster.Proxy()), slices.Clone(r.targets[:2])) // ConfigMaps
		groups := make([][]fault, 0, len(components))
		for _, name := range components {
			groups = append(groups, r.faultsOf(r.cluster.Component(name)))
		}
		r.defined, r.defining = r.targets[1], make(chan struct{})
		r.addExport(newConn(r.t, r.cluster.Shard(0)), r.targets[0].clusters[0], r.targets[1])
		groups = append(groups, []fault{r.killDefining("shard-1")})
		r.workspaces = newWorkspaceChurn(r)
		return groups
	})
}

// TestReplicas injects faults into the replicas of a shard and their etcd. Clients alternate
// between the replicas.
func TestReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: one short run is in the gate")
	}
	t.Parallel()
	components := []string{"etcd-root", "root", "root-replica-2", "front-proxy"}
	runClusters(t, func(r *run) [][]fault {
		r.components = components
		r.cluster = harness.Start(r.t, harness.Options{
			Mode: harness.Processes, Replicas: 2, Without: append([]string{"cache-server"}, components...),
			ExtraArgs: map[string][]string{"shard": compaction},
		})
		startInterrupted(r, 1)
		r.replicas = map[string]*conn{"root": newConn(r.t, r.cluster.Replica(0, 0)), "root-replica-2": newConn(r.t, r.cluster.Replica(0, 1))}
		proxy := newConn(r.t, r.cluster.Proxy())
		clusters := workspaces(r.t, r.cluster.Proxy(), "root", 2)
		direct := newConn(r.t, r.cluster.Replica(0, 0), r.cluster.Replica(0, 1))
		r.targets = []*target{
			configMaps.on("root", direct, proxy, clusters),
			leases.on("root", direct, proxy, clusters),
			workspaceTypes.on("root", direct, proxy, clusters),
		}
		r.defined = r.targets[0]
		r.addExport(direct, clusters[0], r.targets[0])
		return [][]fault{
			r.leaderFaults(), r.faultsOf(r.cluster.Component("etcd-root")),
			append(r.faultsOf(r.cluster.Component("root")), r.faultsOf(r.cluster.Component("root-replica-2"))...),
		}
	})
}

// A long run consists of clusters with a limited lifetime. Each consists of episodes: faults are
// injected, and then the observations are checked.
const (
	clusterLifetime = 10 * time.Minute
	episode         = 30 * time.Second
)

// runClusters runs clusters with consecutive seeds for the duration of the flag, or one cluster briefly.
func runClusters(t *testing.T, begin func(r *run) [][]fault) {
	t.Helper()
	seed := harness.Seed(*seedFlag)
	deadline := time.Now().Add(*durationFlag)
	for n := uint64(0); n == 0 || time.Now().Before(deadline); n++ {
		end := time.Now().Add(min(clusterLifetime, time.Until(deadline)))
		ok := t.Run(fmt.Sprintf("cluster %d", n), func(t *testing.T) {
			r := &run{t: t, seed: seed + n, short: *durationFlag == 0, pause: 60 * time.Millisecond, writes: 100}
			if testing.Short() {
				r.writes = 30
			}
			t.Logf("seed %d", r.seed)
			groups := begin(r)
			for i := 0; i == 0 || time.Now().Before(end) && !t.Failed(); i++ {
				r.rec, r.watchers, r.merged = newRecorder(), nil, nil
				h := r.work(func() { r.injectFaults(groups, time.Now().Add(min(episode, time.Until(end)))) })
				r.verify(h)
				require.Greater(t, len(h.Sessions), len(r.watchers), "no stream was cut")
				require.True(t, r.merging == nil || len(h.MergedLists) > 0 && len(h.Merged) > len(r.merged), "no watch of all shards was resumed")
				require.True(t, r.workspaces == nil || hasWorkspaceLifecycle(h), "no workspace was created, used and deleted")
				r.converge()
				if r.workspaces != nil && !r.short {
					r.workspaces.clear(r)
				}
				r.clear()
			}
		})
		if !ok && n >= 5 {
			return // enough failures to analyse
		}
	}
}

// The resources that the clients use.
var (
	configMaps     = target{group: "/api/v1", namespace: "default", apiVersion: "v1", kind: "ConfigMap", domain: history.Domain{Resource: "configmaps"}}
	leases         = target{group: "/apis/coordination.k8s.io/v1", namespace: "default", apiVersion: "coordination.k8s.io/v1", kind: "Lease", domain: history.Domain{Resource: "leases"}, upserts: true, shortWatchesOnly: true}
	workspaceTypes = target{group: "/apis/tenancy.kcp.io/v1alpha1", apiVersion: "tenancy.kcp.io/v1alpha1", kind: "WorkspaceType", domain: history.Domain{Resource: "workspacetypes"}, controllerWrites: true}
)

// on returns the resource on a server.
func (t target) on(server string, direct, proxied *conn, clusters []string) *target {
	t.domain.Server, t.direct, t.proxied, t.clusters = server, direct, proxied, clusters
	return &t
}

// targets returns the resources of a cluster with two shards and a cache server.
func targets(t *testing.T, c *harness.Cluster) []*target {
	t.Helper()
	proxy := newConn(t, c.Proxy())
	onRoot, onShard := workspaces(t, c.Proxy(), "root", 2), workspaces(t, c.Proxy(), "shard-1", 2)
	root, shard, cache := newConn(t, c.Shard(0)), newConn(t, c.Shard(1)), newConn(t, c.Cache())
	return []*target{
		configMaps.on("root", root, proxy, onRoot),
		configMaps.on("shard-1", shard, proxy, onShard),
		leases.on("shard-1", shard, proxy, onShard),
		workspaceTypes.on("shard-1", shard, proxy, onShard),
		workspaceTypes.on(cacheServer, cache, nil, []string{"robust-one", "robust-two"}),
	}
}

// progress waits until clients have completed additional writes.
func (r *run) progress(writes int) {
	r.t.Helper()
	target := r.rec.writes() + writes
	require.Eventually(r.t, func() bool { return r.rec.writes() >= target }, testTimeout, 10*time.Millisecond, "%d writes were not acknowledged", writes)
}

// converge waits until the cache server, if any, contains the objects of the shards.
func (r *run) converge() {
	last := len(r.targets) - 1
	cache, t := r.targets[last], r.targets[last-1]
	if cache.domain.Server != cacheServer {
		return
	}
	shard := t.domain.Server
	values := func(t *target, scope history.Scope) (values map[history.Key]string, err error) {
		reader := reader{target: t, rec: newRecorder()}
		l, err := reader.list(r.t.Context(), listOptions{conn: t.direct, scope: scope, match: history.Consistent})
		if err != nil {
			return nil, err
		}
		values = map[history.Key]string{}
		for _, o := range l.Items {
			o.Key.Shard = cmp.Or(o.Key.Shard, shard)
			values[o.Key] = o.State.Value
		}
		return values, nil
	}
	want, err := values(t, history.Scope{})
	require.NoError(r.t, err)
	require.Eventually(r.t, func() bool {
		got, err := values(cache, history.Scope{Shard: shard})
		return err == nil && maps.Equal(got, want)
	}, testTimeout, 50*time.Millisecond, "the cache server does not contain the objects of %s", shard)
	r.compare()
}

// compare waits until every replica of every kind is equal to its object. The timeout is shorter
// than the interval of audits, because these would repair any difference.
func (r *run) compare() {
	begin, comparisons := time.Now(), 0
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		comparisons++
		out, err := exec.CommandContext(r.t.Context(), harness.Binary(r.t), "cache", "verify", "--cache-kubeconfig", filepath.Join(r.cluster.Dir, ".kcp-cache", "cache.kubeconfig"),
			"--shard-kubeconfig", r.cluster.ShardKubeconfig(0), "--shard-kubeconfig", r.cluster.ShardKubeconfig(1)).CombinedOutput()
		require.NoError(c, err, "%s", out)
	}, testTimeout, 50*time.Millisecond, "replicas differ from their objects")
	r.t.Logf("Replicas are equal to their objects after %d comparisons and %s", comparisons, time.Since(begin).Round(time.Millisecond))
}

// clear deletes the objects of the clients, so that the next episode begins without them.
func (r *run) clear() {
	ctx := r.t.Context()
	for _, t := range r.targets {
		require.EventuallyWithT(r.t, func(c *assert.CollectT) {
			reader := reader{target: t, rec: newRecorder()}
			l, err := reader.list(ctx, listOptions{conn: t.direct, scope: t.everything(), match: history.Consistent})
			require.NoError(c, err)
			var remaining []history.Key
			for _, o := range l.Items {
				// A controller would recreate the ConfigMap of the root CA.
				if slices.Contains(t.clusters, o.Key.Cluster) && o.Key.Name != "kube-root-ca.crt" {
					remaining = append(remaining, o.Key)
					_, _, _ = t.direct.do(ctx, http.MethodDelete, t.object(o.Key), nil)
				}
			}
			require.Empty(c, remaining)
		}, testTimeout, 10*time.Millisecond, "objects of the clients in %s were not deleted", t.domain)
	}
}
