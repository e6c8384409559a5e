package conformance

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/test/harness"
)

const (
	definitionsPerCluster = 20
	definitionSize        = 24 << 10
	costGroup             = "cost.example.com"

	// compaction is how often etcd forgets the past; 5 minutes, usually.
	compaction = 10 * time.Second
)

// BenchmarkDefinitions installs the same 20 definitions of 24 KB in many logical
// clusters (CONFORMANCE_CLUSTERS, 1000 if not set), and uses them in each. It
// reports, per logical cluster and for all 20 definitions together, the memory
// of the shard, which runs in this process, and of nothing else: etcd runs in a
// process of its own. It then restarts the shard, with all, three tenths and one
// tenth of the clusters.
func BenchmarkDefinitions(b *testing.B) {
	if b.N > 1 {
		b.Skip("once is enough: run with -benchtime 1x")
	}
	clusters := 1000
	if n := os.Getenv("CONFORMANCE_CLUSTERS"); n != "" {
		parsed, err := strconv.Atoi(n)
		require.NoError(b, err)
		clusters = parsed
	}
	etcd := etcdProcess(b)
	shard := harness.Start(b, harness.Options{
		Without:   []string{"cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {"--etcd-servers", etcd, "--etcd-compaction-interval", compaction.String()}},
	})
	client, err := rest.HTTPClientFor(shard.Shard(0))
	require.NoError(b, err)
	in := func(i int) *tenant {
		name := fmt.Sprintf("cost-%d", i)
		return tenantOver(b, name, harness.In(shard.Shard(0), name), client)
	}
	install := func(i int) error { return installDefinitions(b, in(i)) }
	// The first cluster pays for what all share: it is not counted.
	require.NoError(b, install(0))
	before, goroutines := heap(), runtime.NumGoroutine()
	writeHeapProfile(b, "before")
	inParallel(b, clusters, func(i int) error { return install(i + 1) })
	perCluster := func() float64 { return float64(heap()-before) / float64(clusters) / 1024 }
	b.ReportMetric(perCluster(), "KiB/cluster-at-once")
	time.Sleep(3 * compaction) // the watch caches' history goes with etcd's
	b.ReportMetric(perCluster(), "KiB/cluster")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(clusters), "goroutines/cluster")
	b.ReportMetric(float64(watchCaches(b)), "watch-caches")
	b.ReportMetric(0, "ns/op")
	writeHeapProfile(b, "after")

	shard.Component("root").Stop()
	// And now with a part of them: what a restart costs must not grow more than
	// what reading costs.
	for _, n := range []int{clusters, clusters * 3 / 10, clusters / 10} {
		keepClusters(b, etcd, n)
		restarts(b, shard.Component("root"), etcd, n, func() {
			require.NoError(b, useDefinitions(b, in(n)))
		}, func() {
			if n == clusters {
				b.ReportMetric(perCluster(), "KiB/cluster-after-restart")
				writeHeapProfile(b, "restarted")
			}
		})
	}
}

// restarts reports what it costs to start a shard with so many clusters, until a
// definition is used, and what it costs to read what is stored.
func restarts(b *testing.B, root *harness.Component, etcd string, clusters int, use, after func()) {
	b.Helper()
	defer writeCPUProfile(b, fmt.Sprintf("restart-%d", clusters))()
	var read, restart, wall []time.Duration
	for range 2 { // the cheaper one is the one that nothing got in the way of
		began := cpu(b)
		b.ReportMetric(float64(readAll(b, etcd))/1e6, fmt.Sprintf("MB@%d", clusters))
		read = append(read, cpu(b)-began)
		began, now := cpu(b), time.Now()
		root.Start()
		use()
		restart, wall = append(restart, cpu(b)-began), append(wall, time.Since(now))
		after()
		root.Stop()
	}
	cheapest := slices.Min(restart)
	b.ReportMetric(slices.Min(read).Seconds(), fmt.Sprintf("read-cpu-s@%d", clusters))
	b.ReportMetric(cheapest.Seconds(), fmt.Sprintf("restart-cpu-s@%d", clusters))
	b.ReportMetric(slices.Min(wall).Seconds(), fmt.Sprintf("restart-wall-s@%d", clusters))
	b.ReportMetric(cheapest.Seconds()/slices.Min(read).Seconds(), fmt.Sprintf("restart/read@%d", clusters))
}

// keepClusters removes what is stored of the clusters from a number on.
func keepClusters(b *testing.B, url string, n int) {
	b.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
	require.NoError(b, err)
	defer func() { require.NoError(b, client.Close()) }()
	keys, err := client.Get(b.Context(), "/", clientv3.WithRange("0"), clientv3.WithKeysOnly())
	require.NoError(b, err)
	for _, kv := range keys.Kvs {
		for segment := range strings.SplitSeq(string(kv.Key), "/") {
			if number, found := strings.CutPrefix(segment, "cost-"); found {
				i, err := strconv.Atoi(number)
				if err == nil && i > n {
					_, err := client.Delete(b.Context(), string(kv.Key))
					require.NoError(b, err)
				}
			}
		}
	}
}

func installDefinitions(b *testing.B, c *tenant) error {
	b.Helper()
	for n := range definitionsPerCluster {
		definition := bigCRD(b, costGroup, n, definitionSize)
		if _, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Create(b.Context(), definition, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return useDefinitions(b, c)
}

// useDefinitions lists the custom resources of a logical cluster.
func useDefinitions(b *testing.B, c *tenant) error {
	b.Helper()
	for n := range definitionsPerCluster {
		resource := schema.GroupVersionResource{Group: costGroup, Version: "v1", Resource: fmt.Sprintf("things%02d", n)}
		if _, err := c.dyn.Resource(resource).List(b.Context(), metav1.ListOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads everything in etcd once, and does nothing with it.
func readAll(b *testing.B, url string) (bytes int) {
	b.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, MaxCallRecvMsgSize: math.MaxInt32})
	require.NoError(b, err)
	defer func() { require.NoError(b, client.Close()) }()
	for from := "/"; ; {
		page, err := client.Get(b.Context(), from, clientv3.WithRange("0"), clientv3.WithLimit(1000))
		require.NoError(b, err)
		for _, kv := range page.Kvs {
			bytes += len(kv.Value)
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			return bytes
		}
	}
}

// watchCaches is how many watch caches tenants' custom resources have had.
func watchCaches(t testing.TB) int {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	found := 0
	for _, family := range families {
		if family.GetName() != "apiserver_watch_cache_initializations_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "group" && label.GetValue() == storage.Unnamed.Group {
					found += int(metric.GetCounter().GetValue())
				}
			}
		}
	}
	return found
}

// heap is what the program holds.
func heap() int64 {
	for range 3 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// writeCPUProfile writes what takes the time until it is stopped, if the
// environment says where.
func writeCPUProfile(b *testing.B, of string) (stop func()) {
	b.Helper()
	dir := os.Getenv("CONFORMANCE_PROFILES")
	if dir == "" {
		return func() {}
	}
	file, err := os.Create(filepath.Join(dir, of+".cpu"))
	require.NoError(b, err)
	require.NoError(b, pprof.StartCPUProfile(file))
	return func() {
		pprof.StopCPUProfile()
		require.NoError(b, file.Close())
	}
}

// writeHeapProfile writes what holds the memory, if the environment says where.
func writeHeapProfile(b *testing.B, when string) {
	b.Helper()
	dir := os.Getenv("CONFORMANCE_PROFILES")
	if dir == "" {
		return
	}
	file, err := os.Create(filepath.Join(dir, when+".heap"))
	require.NoError(b, err)
	defer func() { require.NoError(b, file.Close()) }()
	require.NoError(b, pprof.Lookup("heap").WriteTo(file, 0))
}

// etcdProcess starts an etcd in a process of its own, which ends with the test,
// and returns its URL.
func etcdProcess(t testing.TB) string {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), etcdEnv+"="+t.TempDir())
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	require.NoError(t, err)
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close()) // its sign to stop
		require.NoError(t, command.Wait())
	})
	var url string
	_, err = fmt.Fscanln(stdout, &url)
	require.NoError(t, err)
	return url
}
