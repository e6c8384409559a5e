package robustness

import (
	"flag"
	"fmt"
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
	seedFlag     = flag.Uint64("seed", 0, "seed of the random choices of clients and faults; 0 draws one")
	durationFlag = flag.Duration("duration", 0, "how long to break the cluster; 0 is each fault once")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m))
}

// compaction has a short interval, so that old resource versions expire in the
// middle of all.
var compaction = []string{"--etcd-compaction-interval=2s"}

// TestRobustness breaks every component of a cluster while clients work, and
// holds that none of them saw what it must not see.
func TestRobustness(t *testing.T) {
	t.Parallel()
	components := []string{"root", "shard-1", "cache-server", "front-proxy"}
	lives(t, func(r *run) [][]fault {
		r.components = components
		r.cluster = harness.Start(r.t, harness.Options{
			Mode: harness.Processes, Shards: 2, Without: components,
			ExtraArgs: map[string][]string{"shard": compaction, "cache-server": compaction},
		})
		interrupted(r, 2)
		r.targets = targets(r.t, r.cluster)
		r.addMerging(newConn(r.t, r.cluster.Proxy()), slices.Clone(r.targets[:2])) // ConfigMaps
		hands := make([][]fault, 0, len(components))
		for _, name := range components {
			hands = append(hands, r.deck(r.cluster.Component(name)))
		}
		r.defined, r.begun = r.targets[1], make(chan struct{})
		r.addViews(newConn(r.t, r.cluster.Shard(0)), r.targets[0].clusters[0], r.targets[1])
		hands = append(hands, []fault{r.killDefining("shard-1")})
		r.workspaces = newWorkspaceChurn(r)
		return hands
	})
}

// TestReplicas breaks the replicas of a shard, and the etcd that they share,
// while clients go from one to the other.
func TestReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: one short run is in the gate")
	}
	t.Parallel()
	components := []string{"etcd-root", "root", "root-replica-2", "front-proxy"}
	lives(t, func(r *run) [][]fault {
		r.components = components
		r.cluster = harness.Start(r.t, harness.Options{
			Mode: harness.Processes, Replicas: 2, Without: append([]string{"cache-server"}, components...),
			ExtraArgs: map[string][]string{"shard": compaction},
		})
		interrupted(r, 1)
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
		r.addViews(direct, clusters[0], r.targets[0])
		return [][]fault{
			r.ofLeader(), r.deck(r.cluster.Component("etcd-root")),
			append(r.deck(r.cluster.Component("root")), r.deck(r.cluster.Component("root-replica-2"))...),
		}
	})
}

// lifetime is how long a cluster lives in a long run, and episode how long it is
// broken before what its clients saw is checked.
const (
	lifetime = 10 * time.Minute
	episode  = 30 * time.Second
)

// lives runs clusters, one after the other, for the duration of the flag, or one
// for a short while. Each life draws from a seed of its own.
func lives(t *testing.T, begin func(r *run) [][]fault) {
	t.Helper()
	seed := harness.Seed(*seedFlag)
	deadline := time.Now().Add(*durationFlag)
	for life := uint64(0); life == 0 || time.Now().Before(deadline); life++ {
		end := deadline
		if latest := time.Now().Add(lifetime); latest.Before(end) {
			end = latest
		}
		ok := t.Run(fmt.Sprintf("life %d", life), func(t *testing.T) {
			r := &run{t: t, seed: seed + life, short: *durationFlag == 0, pause: 60 * time.Millisecond}
			t.Logf("seed %d", r.seed)
			hands := begin(r)
			for n := 0; n == 0 || time.Now().Before(end) && !t.Failed(); n++ {
				r.rec, r.watchers, r.merged = newRecorder(), nil, nil
				h := r.work(func() { r.breakAll(hands, earlier(end, time.Now().Add(episode))) })
				r.verify(h)
				require.Greater(t, len(h.Sessions), len(r.watchers), "streams were cut")
				require.True(t, r.merging == nil || len(h.MergedLists) > 0 && len(h.Merged) > len(r.merged), "all shards were followed")
				require.True(t, r.workspaces == nil || cameAndWent(h), "workspaces came, were used and went")
				r.converge()
				if r.workspaces != nil && !r.short {
					r.workspaces.clear(r)
				}
				r.clear()
			}
		})
		if !ok && life >= 5 {
			return // it has found enough
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// The resources that the clients work on.
var (
	configMaps     = target{group: "/api/v1", namespace: "default", apiVersion: "v1", kind: "ConfigMap", domain: history.Domain{Resource: "configmaps"}}
	leases         = target{group: "/apis/coordination.k8s.io/v1", namespace: "default", apiVersion: "coordination.k8s.io/v1", kind: "Lease", domain: history.Domain{Resource: "leases"}, upserts: true, fleeting: true}
	workspaceTypes = target{group: "/apis/tenancy.kcp.io/v1alpha1", apiVersion: "tenancy.kcp.io/v1alpha1", kind: "WorkspaceType", domain: history.Domain{Resource: "workspacetypes"}, minded: true}
)

// on returns the resource as a server has it.
func (t target) on(server string, direct, proxied *conn, clusters []string) *target {
	t.domain.Server, t.direct, t.proxied, t.clusters = server, direct, proxied, clusters
	return &t
}

// targets are the resources of a cluster of two shards and a cache server.
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

// progress waits until so many more writes are acknowledged.
func (r *run) progress(writes int) {
	r.t.Helper()
	target := r.rec.writes() + writes
	require.Eventually(r.t, func() bool { return r.rec.writes() >= target }, testTimeout, 10*time.Millisecond, "writers get on")
}

// converge holds that the cache server, where there is one, ends with what the
// shards have.
func (r *run) converge() {
	last := len(r.targets) - 1
	cache, t := r.targets[last], r.targets[last-1]
	if cache.domain.Server != cacheServer {
		return
	}
	reader := reader{target: t, rec: newRecorder()}
	whole, err := reader.list(r.t.Context(), ask{conn: t.direct, match: history.Consistent})
	require.NoError(r.t, err)
	want := map[history.Key]string{}
	for _, o := range whole.Items {
		o.Key.Shard = t.domain.Server
		want[o.Key] = o.State.Value
	}
	replicas := *cache
	reader.target = &replicas
	var got map[history.Key]string
	require.Eventually(r.t, func() bool {
		l, err := reader.list(r.t.Context(), ask{conn: cache.direct, scope: history.Scope{Shard: t.domain.Server}, match: history.Consistent})
		if err != nil {
			return false
		}
		got = map[history.Key]string{}
		for _, o := range l.Items {
			got[o.Key] = o.State.Value
		}
		return len(got) == len(want) && equal(got, want)
	}, testTimeout, 50*time.Millisecond, "the cache server has what %s has", t.domain.Server)
	r.compare()
}

// compare waits until no replica of any kind differs from its object, on any shard. Audits, which would mend
// anything, come less often than that.
func (r *run) compare() {
	begin, comparisons := time.Now(), 0
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		comparisons++
		out, err := exec.CommandContext(r.t.Context(), harness.Binary(r.t), "cache", "verify", "--cache-kubeconfig", filepath.Join(r.cluster.Dir, ".kcp-cache", "cache.kubeconfig"),
			"--shard-kubeconfig", r.cluster.ShardKubeconfig(0), "--shard-kubeconfig", r.cluster.ShardKubeconfig(1)).CombinedOutput()
		require.NoError(c, err, "%s", out)
	}, testTimeout, 50*time.Millisecond, "replicas are as their objects")
	r.t.Logf("no replica differs from its object, after %d comparisons and %s", comparisons, time.Since(begin).Round(time.Millisecond))
}

func equal(a, b map[history.Key]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// clear deletes what the clients have made, so that the next record begins with
// nothing.
func (r *run) clear() {
	ctx := r.t.Context()
	for _, t := range r.targets {
		require.EventuallyWithT(r.t, func(c *assert.CollectT) {
			reader := reader{target: t, rec: newRecorder()}
			l, err := reader.list(ctx, ask{conn: t.direct, scope: t.everything(), match: history.Consistent})
			require.NoError(c, err)
			var left []history.Key
			for _, o := range l.Items {
				// The ConfigMap of the root CA would come back.
				if slices.Contains(t.clusters, o.Key.Cluster) && o.Key.Name != "kube-root-ca.crt" {
					left = append(left, o.Key)
					_, _, _ = t.direct.do(ctx, http.MethodDelete, t.object(o.Key), nil)
				}
			}
			require.Empty(c, left)
		}, testTimeout, 10*time.Millisecond, "what the clients made in %s is deleted", t.domain)
	}
}
