package cacheserver_test

import (
	"encoding/json"
	"runtime"
	"testing"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// live returns how many bytes of the heap are in use, by whoever.
func live() float64 {
	runtime.GC()
	runtime.GC() // what had finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkReplicaMemory measures what a replica of 4 KiB takes in a cache server, whose etcd is in the process and which somebody
// reads, and in a reader of it, beside the Go object:
//
//	go test ./pkg/cacheserver -run XXX -bench ReplicaMemory -benchtime 1x [-objects 1000]
func BenchmarkReplicaMemory(b *testing.B) {
	for range b.N {
		benchReplicaMemory(b)
	}
	b.ReportMetric(0, "ns/op")
}

func benchReplicaMemory(b *testing.B) {
	b.Helper()
	cache := newCacheServer(b)
	read := func() *client.Informer[*tenancyv1alpha1.WorkspaceType] {
		reader := kinds.WorkspaceTypes.Informer(cache.f.Shard("*").Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{})
		start(b, "", reader.Run)
		eventually(b, "the reader has synced", reader.HasSynced)
		return reader
	}
	first := read()
	push := func(from, to int) {
		pushTypes(b, cache, from, to)
		eventually(b, "the reader has all", func() bool { return first.Lister().Len() == to })
	}
	push(0, perCluster) // what is made once is there
	before := live()
	push(perCluster, perCluster+*benchObjects)
	both := live() - before

	texts, stored := [][]byte{}, 0
	for _, obj := range first.Lister().List(nil)[:*benchObjects] {
		text, err := json.Marshal(obj)
		require.NoError(b, err)
		texts, stored = append(texts, text), stored+len(text)
	}
	before = live()
	objects := make([]*tenancyv1alpha1.WorkspaceType, len(texts))
	for i, text := range texts {
		require.NoError(b, json.Unmarshal(text, &objects[i]))
	}
	plain := live() - before
	runtime.KeepAlive(objects)
	runtime.KeepAlive(texts)

	before = live()
	second := read()
	reading := live() - before
	require.Equal(b, first.Lister().Len(), second.Lister().Len())

	of := float64(*benchObjects)
	b.ReportMetric(float64(stored)/of, "B/stored")
	b.ReportMetric(plain/of, "B/Go-object")
	b.ReportMetric(reading/of, "B/reader")
	b.ReportMetric((both-reading)/of, "B/server")
}
