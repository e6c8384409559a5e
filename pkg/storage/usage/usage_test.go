package usage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	prefix      = "/shardplane"
	testTimeout = 30 * time.Second
	tick        = 5 * time.Millisecond
)

func startEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server.Client().Client
}

// put writes below the prefix, and returns the revision.
func put(t *testing.T, client *clientv3.Client, key, value string) uint64 {
	t.Helper()
	response, err := client.Put(t.Context(), prefix+key, value)
	require.NoError(t, err)
	return uint64(response.Header.Revision) //nolint:gosec // positive
}

func fill(t *testing.T, client *clientv3.Client, objects int) {
	t.Helper()
	for n := range objects {
		put(t, client, fmt.Sprintf("/core/configmaps/root/default/%03d", n), "value")
	}
}

func startCounter(t *testing.T, client *clientv3.Client) *usage.Counter {
	t.Helper()
	counter := usage.NewUsageMeter(client, prefix, "/core/events", things)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := counter.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return counter
}

// things are counted separately.
var things = schema.GroupResource{Group: "example.com", Resource: "things"}

// stored computes the usage of a logical cluster, and of a resource unless that is empty, from a full read.
func stored(t *testing.T, client *clientv3.Client, cluster logicalcluster.Name, of schema.GroupResource) usage.Usage {
	t.Helper()
	all, err := client.Get(t.Context(), prefix+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	var sum usage.Usage
	for _, kv := range all.Kvs {
		parts := strings.Split(strings.TrimPrefix(string(kv.Key), prefix+"/"), "/")
		if len(parts) > 3 && parts[2] == ":0a1b" {
			parts = slices.Delete(parts, 2, 3)
		}
		if len(parts) < 4 || parts[2] != string(cluster) || of.Resource != "" && (parts[0] != of.Group || parts[1] != of.Resource) {
			continue
		}
		sum.Bytes += int64(len(kv.Key) + len(kv.Value))
		if parts[1] != "events" {
			sum.Objects++
		}
	}
	return sum
}

// TestCounter compares the counter with a full read during random writes and compactions.
func TestCounter(t *testing.T) {
	client := startEtcd(t)
	clusters := []logicalcluster.Name{"root", "first", "second", "system:admin"}
	lease, err := client.Grant(t.Context(), 3600)
	require.NoError(t, err)
	work := func(seed uint64, kinds int) {
		random := rand.New(rand.NewPCG(seed, 0))
		for range 400 {
			resource := []string{"core/configmaps", "core/events", "example.com/things", "example.com/things/:0a1b"}[random.IntN(4)]
			key := fmt.Sprintf("%s/%s/%s/default/%d", prefix, resource, clusters[random.IntN(len(clusters))], random.IntN(40))
			value := strings.Repeat("x", random.IntN(3000))
			switch random.IntN(kinds) {
			case 7:
				_, err = client.Put(t.Context(), key, value, clientv3.WithLease(lease.ID))
			case 0, 1:
				_, err = client.Delete(t.Context(), key)
			case 2:
				var now *clientv3.GetResponse
				now, err = client.Get(t.Context(), key)
				require.NoError(t, err)
				_, err = client.Compact(t.Context(), now.Header.Revision)
				if err != nil && strings.Contains(err.Error(), "compacted") {
					err = nil
				}
			default:
				_, err = client.Put(t.Context(), key, value)
			}
			require.NoError(t, err)
		}
	}
	for key, value := range map[string]string{
		prefix + "-identity": "no object", prefix + "/core/configmaps": "no object", "/elsewhere/core/configmaps/root/default/x": "another prefix",
		prefix + "/core/configmaps/~/default/x": "no logical cluster",
	} {
		_, err := client.Put(t.Context(), key, value)
		require.NoError(t, err)
	}
	work(1, 8)
	counter := startCounter(t, client)
	work(2, 8)
	agrees := func() {
		t.Helper()
		for _, cluster := range clusters {
			want, wantThings := stored(t, client, cluster, schema.GroupResource{}), stored(t, client, cluster, things)
			require.Positive(t, wantThings.Objects)
			var got, gotThings usage.Usage
			require.Eventually(t, func() bool {
				var known, knownThings bool
				got, known = counter.Of(cluster)
				gotThings, knownThings = counter.OfKind(cluster, things)
				return known && knownThings && got == want && gotThings == wantThings
			}, testTimeout, tick, "%s: stored %+v, things %+v, counted %+v, things %+v", cluster, want, wantThings, &got, &gotThings)
		}
	}
	agrees()
	_, err = client.Revoke(t.Context(), lease.ID) // deletes what has it, as Events go
	require.NoError(t, err)
	work(3, 7)
	agrees()
	prefixes, known := counter.Prefixes()
	require.True(t, known)
	require.Equal(t, []string{"/core/configmaps/", "/core/events/", "/example.com/things/", "/example.com/things/:0a1b/"}, prefixes)
	got, known := counter.Of("missing")
	require.True(t, known)
	require.Zero(t, got)
	_, known = counter.OfKind(clusters[0], schema.GroupResource{Group: "example.com", Resource: "others"})
	require.False(t, known)
	_, err = client.Delete(t.Context(), prefix+"/example.com/things/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		prefixes, _ := counter.Prefixes()
		return slices.Equal(prefixes, []string{"/core/configmaps/", "/core/events/"})
	}, testTimeout, tick, "prefixes without keys must be removed")
}

// ranges records the ranges that are read with values, and their numbers of keys.
type ranges struct {
	clientv3.KV
	ends  []string
	found []int
}

func (r *ranges) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	response, err := r.KV.Get(ctx, key, opts...)
	if op := clientv3.OpGet(key, opts...); err == nil && !op.IsKeysOnly() {
		r.ends, r.found = append(r.ends, string(op.RangeBytes())), append(r.found, int(response.Count))
	}
	return response, err
}

// TestReadsInParts verifies that values are read in small ranges without a limit, because etcd would iterate over all
// keys.
func TestReadsInParts(t *testing.T) {
	client := startEtcd(t)
	fill(t, client, 250)
	kv := &ranges{KV: client.KV}
	client.KV = kv
	counter := startCounter(t, client)
	require.Eventually(t, func() bool {
		usage, known := counter.Of("root")
		return known && usage.Objects == 250
	}, testTimeout, tick)
	client.KV = kv.KV
	require.Equal(t, []int{100, 100, 50}, kv.found, kv.ends)
}

// restless replaces keys during each read.
type restless struct {
	clientv3.KV
	reads int
}

func (r *restless) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	response, err := r.KV.Get(ctx, key, opts...)
	if err != nil || len(response.Kvs) == 0 {
		return response, err
	}
	r.reads++
	if _, err := r.Delete(ctx, fmt.Sprintf("%s/core/configmaps/root/default/%03d", prefix, r.reads)); err != nil {
		return nil, err
	}
	_, err = r.Put(ctx, fmt.Sprintf("%s/core/configmaps/root/default/000-%d", prefix, r.reads), "more")
	return response, err
}

// TestCountsOneState verifies that all pages of a scan have the same revision during writes.
func TestCountsOneState(t *testing.T) {
	client := startEtcd(t)
	fill(t, client, 350)
	kv := &restless{KV: client.KV}
	client.KV = kv
	counter := startCounter(t, client)
	require.Eventually(t, func() bool { _, known := counter.Of("root"); return known }, testTimeout, tick)
	client.KV = kv.KV
	require.Greater(t, kv.reads, 3)
	want := stored(t, client, "root", schema.GroupResource{})
	var got usage.Usage
	require.Eventually(t, func() bool {
		got, _ = counter.Of("root")
		return got == want
	}, testTimeout, tick, "stored %+v, counted %+v", want, &got)
}
