package robustness

import (
	"flag"
	"os"
	"testing"
	"time"

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
	code := m.Run()
	harness.RemoveBinaries()
	os.Exit(code)
}

// TestRobustness breaks every component of a cluster while clients work, and
// holds that none of them saw what it must not see.
func TestRobustness(t *testing.T) {
	// The interval of compaction is short, so that old resource versions expire
	// in the middle of all.
	compaction := []string{"--etcd-compaction-interval=2s"}
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Shards: 2,
		ExtraArgs: map[string][]string{"shard": compaction, "cache-server": compaction},
	})
	r := &run{t: t, cluster: c, seed: harness.Seed(*seedFlag), rec: newRecorder(), pause: 60 * time.Millisecond}
	t.Logf("seed %d", r.seed)
	r.targets = targets(t, c)
	h := r.work(func() { r.faults(*durationFlag) })
	r.verify(h)
	require.Greater(t, len(h.Sessions), len(r.watchers), "streams were cut")
	r.converge()
}

// targets are the resources that the clients work on.
func targets(t *testing.T, c *harness.Cluster) []*target {
	t.Helper()
	proxy := newConn(t, c.Proxy())
	onRoot, onShard := workspaces(t, c.Proxy(), "root", 2), workspaces(t, c.Proxy(), "shard-1", 2)
	root, shard, cache := newConn(t, c.Shard(0)), newConn(t, c.Shard(1)), newConn(t, c.Cache())
	configMaps := target{group: "/api/v1", namespace: "default", apiVersion: "v1", kind: "ConfigMap", domain: history.Domain{Resource: "configmaps"}}
	types := target{group: "/apis/tenancy.kcp.io/v1alpha1", apiVersion: "tenancy.kcp.io/v1alpha1", kind: "WorkspaceType", domain: history.Domain{Resource: "workspacetypes"}}
	with := func(of target, server string, direct, proxied *conn, clusters []string) *target {
		of.domain.Server, of.direct, of.proxied, of.clusters = server, direct, proxied, clusters
		return &of
	}
	return []*target{
		with(configMaps, "root", root, proxy, onRoot),
		with(configMaps, "shard-1", shard, proxy, onShard),
		with(types, "shard-1", shard, proxy, onShard),
		with(types, cacheServer, cache, nil, []string{"robust-one", "robust-two"}),
	}
}

// faults breaks one component after the other, each at least once, for at least
// the duration. Between two faults, clients get something done.
func (r *run) faults(duration time.Duration) {
	rng := r.rng()
	deadline := time.Now().Add(duration)
	for round := 0; round == 0 || time.Now().Before(deadline); round++ {
		deck := []string{"root", "shard-1", "cache-server", "front-proxy"}
		rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, name := range deck {
			r.progress(100)
			component := r.cluster.Component(name)
			if round > 0 && rng.IntN(4) == 0 {
				component.Restart()
				continue
			}
			component.Kill()
			pace(r.t.Context(), time.Duration(rng.Int64N(int64(300*time.Millisecond))))
			component.Start()
		}
	}
	r.progress(100)
}

// progress waits until so many more writes are acknowledged.
func (r *run) progress(writes int) {
	r.t.Helper()
	target := r.rec.writes() + writes
	require.Eventually(r.t, func() bool { return r.rec.writes() >= target }, patience, 10*time.Millisecond, "writers get on")
}

// converge holds that the cache server ends with what the shards have.
func (r *run) converge() {
	t := r.targets[2]
	cache := r.targets[3]
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
	}, patience, 50*time.Millisecond, "the cache server has what %s has", t.domain.Server)
}

func equal(a, b map[history.Key]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}
