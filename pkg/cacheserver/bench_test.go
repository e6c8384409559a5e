package cacheserver_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

var benchObjects = flag.Int("objects", 10_000, "objects of the benchmark of replication")

// wire counts what goes over the connections of a client, TLS included.
type wire struct {
	up, down atomic.Int64

	mu   sync.Mutex
	open []net.Conn
}

// cut ends the connections that there are.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		_ = c.Close()
	}
	w.open = nil
}

type wireConn struct {
	net.Conn
	*wire
}

func (c wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.down.Add(int64(n))
	return n, err
}

func (c wireConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.up.Add(int64(n))
	return n, err
}

// client returns a client of the cache server.
func (w *wire) client(b *testing.B, config *rest.Config) *client.Factory {
	b.Helper()
	config = rest.CopyConfig(config)
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open = append(w.open, c)
		return wireConn{c, w}, nil
	}
	f, err := client.NewFactory(config)
	require.NoError(b, err)
	b.Cleanup(f.CloseIdleConnections)
	return f
}

// kib returns how many KiB have gone over the connections since it was called last.
func (w *wire) kib() float64 { return float64(w.up.Swap(0)+w.down.Swap(0)) / 1024 }

// perCluster is how many replicas a logical cluster has that pushTypes pushes.
const perCluster = 100

// pushTypes pushes replicas of workspace types of 4 KiB as the shard amber does, from one number up to another.
func pushTypes(b *testing.B, cache *cacheServer, from, to int) {
	b.Helper()
	amber := cache.f.Shard("amber")
	padding := strings.Repeat("x", 3500)
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for n := from + worker; n < to; n += 16 {
				uid := fmt.Sprintf("2f1f4ad0-4c6d-4a8e-9d3f-%012d", n)
				replica := object(workspaceTypesGVR, "WorkspaceType", typeName(n), nil)
				replica.SetUID(types.UID(uid))
				replica.SetAnnotations(map[string]string{
					"kcp.io/shard": "amber", "cache.kcp.io/original-resource-version": strconv.Itoa(n + 1), "cache.kcp.io/original-resource-UID": uid, "padding": fmt.Sprint(n, padding),
				})
				create(b, in(b, amber, string(typeCluster(n)), workspaceTypesGVR), replica)
			}
		})
	}
	wg.Wait()
}

func typeName(n int) string { return fmt.Sprintf("t-%06d", n) }

func typeCluster(n int) logicalcluster.Name {
	return logicalcluster.Name(fmt.Sprintf("c-%d", n/perCluster))
}

// BenchmarkReplication measures the replication of objects of 4 KiB between a shard and a cache server, in one process:
//
//	go test ./pkg/cacheserver -run XXX -bench Replication -benchtime 1x [-objects 1000]
func BenchmarkReplication(b *testing.B) {
	for range b.N {
		benchReplication(b)
	}
	b.ReportMetric(0, "ns/op")
}

func benchReplication(b *testing.B) {
	b.Helper()
	cache := newCacheServer(b)
	amber := newTestShard(b, "amber")
	shards, replicas := in(b, amber.f, "root", shardsGVR), in(b, cache.f.Shard("amber"), "root", shardsGVR)
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for n := worker; n < *benchObjects; n += 16 {
				padding := make([]byte, 2048) // which nothing compresses much
				_, _ = rand.Read(padding)
				create(b, shards, object(shardsGVR, "Shard", fmt.Sprintf("some-shard-%06d", n), map[string]any{"baseURL": "https://x", "virtualWorkspaceURL": "https://" + hex.EncodeToString(padding)}))
			}
		})
	}
	wg.Wait()

	pushing := &wire{}
	run := func() (stop func()) {
		controller, err := replication.New(replication.Config{
			Table: tableOf(b, replication.Resource{GroupVersionResource: shardsGVR}),
			Shard: "amber", Local: amber.f, Cache: pushing.client(b, cache.pki.master(b, cache.url)), MarkInterval: time.Hour,
		})
		require.NoError(b, err)
		stop = start(b, "", controller.Run).stop
		eventually(b, "all is replicated", controller.HasSynced)
		return stop
	}
	begin := time.Now()
	stop := run()
	b.ReportMetric(time.Since(begin).Seconds(), "s/first-push")
	stop()
	pushing.kib()
	run()
	<-time.After(5 * time.Second) // what comes after it has synced
	b.ReportMetric(pushing.kib(), "KiB/reconnect")

	for what, wrong := range map[string]func() error{
		"edited": func() error {
			_, err := replicas.Patch(b.Context(), "some-shard-000001", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://evil"}}`), metav1.PatchOptions{})
			return err
		},
		"lost": func() error { return replicas.Delete(b.Context(), "some-shard-000002", metav1.DeleteOptions{}) },
		"invented": func() error {
			_, err := replicas.Create(b.Context(), object(shardsGVR, "Shard", "invented", nil), metav1.CreateOptions{})
			return err
		},
	} {
		pushing.kib()
		begin = time.Now()
		require.NoError(b, wrong())
		eventually(b, what+" is repaired", func() bool {
			one, err := replicas.Get(b.Context(), "some-shard-000001", metav1.GetOptions{})
			_, lost := replicas.Get(b.Context(), "some-shard-000002", metav1.GetOptions{})
			_, invented := replicas.Get(b.Context(), "invented", metav1.GetOptions{})
			url, _, _ := unstructured.NestedString(one.Object, "spec", "baseURL")
			return err == nil && url == "https://x" && lost == nil && invented != nil
		})
		b.ReportMetric(time.Since(begin).Seconds(), "s/"+what)
		b.ReportMetric(pushing.kib(), "KiB/"+what)
	}
	benchUpdates(b, cache, amber, pushing)
}

// BenchmarkReconnect measures what goes over the connections to a cache server that has all replicas of all kinds, of 4 KiB, when
// the process starts anew that pushes them, and when its connections break:
//
//	go test ./pkg/cacheserver -run XXX -bench Reconnect -benchtime 1x [-objects 1000]
func BenchmarkReconnect(b *testing.B) {
	for range b.N {
		benchReconnect(b)
	}
	b.ReportMetric(0, "ns/op")
}

func benchReconnect(b *testing.B) {
	b.Helper()
	cache := newCacheServer(b)
	source := &cacheServer{pki: cache.pki, dataDir: b.TempDir()} // which serves the kinds that a shard has built in, too
	source.start(b)
	local := factory(b, source.pki.master(b, source.url)).Shard("amber")
	pushEach(b, local, *benchObjects)
	pushing := &wire{}
	run := func() (stop func()) {
		controller, err := replication.New(replication.Config{Shard: "amber", Local: local, Cache: pushing.client(b, cache.pki.master(b, cache.url))})
		require.NoError(b, err)
		stop = start(b, "", controller.Run).stop
		eventually(b, "all is replicated", controller.HasSynced)
		return stop
	}
	// What comes after it has synced: marks, and a comparison of digests.
	rest := func() { <-time.After(20 * time.Second) }
	stop := run()
	rest()
	stop()
	pushing.kib()
	run()
	rest()
	b.ReportMetric(pushing.kib(), "KiB/restart")
	rest()
	b.ReportMetric(pushing.kib(), "KiB/nothing")
	pushing.cut()
	rest()
	b.ReportMetric(pushing.kib(), "KiB/reconnect")
}

// pushEach makes as many objects of each replicated kind, of 4 KiB, all of which are marked to be replicated.
func pushEach(b *testing.B, f *client.Factory, objects int) {
	b.Helper()
	discovery, err := documents.Of(f.Wildcard())
	require.NoError(b, err)
	_, served, err := discovery.ServerGroupsAndResources()
	require.NoError(b, err)
	kindOf := map[string]string{}
	for _, list := range served {
		for _, resource := range list.APIResources {
			kindOf[list.GroupVersion+"/"+resource.Name] = resource.Kind
		}
	}
	table, padding := replication.Defaults(), strings.Repeat("x", 3500)
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for n := worker; n < objects; n += 16 {
				gvr := table[n%len(table)].GroupVersionResource
				obj := object(gvr, kindOf[gvr.GroupVersion().String()+"/"+gvr.Resource], fmt.Sprintf("o-%06d", n), map[string]any{"padding": padding})
				obj.SetAnnotations(map[string]string{"internal.kcp.io/replicate": "it"})
				create(b, in(b, f, "c-"+strconv.Itoa(n/perCluster), gvr), obj)
			}
		})
	}
	wg.Wait()
}

// benchUpdates measures the bytes of an update on the way to the cache server, and to one that reads.
func benchUpdates(b *testing.B, cache *cacheServer, amber *testShard, pushing *wire) {
	b.Helper()
	shards, reading := in(b, amber.f, "root", shardsGVR), &wire{}
	informer, err := client.NewDynamicInformer(reading.client(b, cache.pki.master(b, cache.url)).Shard("*").Wildcard(), shardsGVR, client.InformerOptions[*unstructured.Unstructured]{})
	require.NoError(b, err)
	start(b, "", informer.Run)
	eventually(b, "the reader has synced", informer.HasSynced)
	pushing.up.Store(0)
	reading.down.Store(0)
	const updates = 200
	last, size := "", 0
	for n := range updates {
		updated, err := shards.Patch(b.Context(), fmt.Sprintf("some-shard-%06d", n%*benchObjects), types.MergePatchType, fmt.Appendf(nil, `{"spec":{"externalURL":"https://%d"}}`, n), metav1.PatchOptions{})
		require.NoError(b, err)
		text, err := updated.MarshalJSON()
		require.NoError(b, err)
		last, size = updated.GetResourceVersion(), size+len(text)
	}
	eventually(b, "the reader has the last", func() bool {
		return slices.ContainsFunc(informer.Lister().Cluster(logicalcluster.Name("root")).List(nil), func(o *unstructured.Unstructured) bool {
			return o.GetAnnotations()["cache.kcp.io/original-resource-version"] == last
		})
	})
	b.ReportMetric(float64(pushing.up.Load())/float64(size), "of-object/update-up")
	b.ReportMetric(float64(reading.down.Load())/float64(size), "of-object/update-down")
}
