package workspaceindex

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/test/heap"
)

// many is the number of workspaces in a large installation, on 50 shards, with 1,000 in each organization.
const many = 1000000

var large = sync.OnceValue(func() *Index {
	x := NewWorkspaceIndex()
	x.UpsertLogicalCluster("shard-0", LogicalCluster{Name: "root", Shard: "shard-0", Phase: ready})
	for i := range many {
		shard, name := "shard-"+strconv.Itoa(i%50), largeName(i)
		parent := logicalcluster.Name("root")
		if i >= many/1000 {
			parent = largeName(i % (many / 1000))
		}
		x.UpsertLogicalCluster(shard, LogicalCluster{Name: name, Shard: shard, Phase: ready, Created: 1700000000})
		x.UpsertWorkspace(shard, Workspace{Parent: parent, Name: "ws-" + strconv.Itoa(i), Cluster: name, Phase: ready})
	}
	return x
})

func largeName(i int) logicalcluster.Name { return logicalcluster.Name(fmt.Sprintf("%016x", i)) }

// BenchmarkMemory measures the heap usage of a workspace and its logical cluster.
func BenchmarkMemory(b *testing.B) {
	before := heap.InUse()
	x := large()
	took := heap.InUse() - before
	for b.Loop() {
		runtime.KeepAlive(x)
	}
	b.ReportMetric(float64(took)/many, "B/workspace")
}

// BenchmarkLookup looks up a million workspaces in turn, so that they are not in the CPU caches, by path and by name.
func BenchmarkLookup(b *testing.B) {
	paths, names := make([]string, 1<<16), make([]string, 1<<16)
	for i := range paths {
		at := many/1000 + i*7919%(many-many/1000)
		paths[i] = fmt.Sprintf("root:ws-%d:ws-%d", at%(many/1000), at)
		names[i] = largeName(at).String()
	}
	for _, run := range []struct {
		name  string
		paths []string
	}{{"Path", paths}, {"Name", names}, {"Hot", paths[:1]}} {
		b.Run(run.name, func(b *testing.B) {
			x := large()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, outcome := x.Lookup(run.paths[i&(len(run.paths)-1)]); outcome != Found {
					b.Fatal(outcome)
				}
				i++
			}
		})
	}
}

func BenchmarkAnnounce(b *testing.B) {
	x := threeLevels()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		name := logicalcluster.Name(fmt.Sprintf("c%d", i))
		x.UpsertLogicalCluster("one", LogicalCluster{Name: name, Phase: ready})
		x.UpsertWorkspace("one", Workspace{Parent: "root", Name: name.String(), Cluster: name, Phase: ready})
	}
}

// BenchmarkRestore reads the snapshots of a million workspaces.
func BenchmarkRestore(b *testing.B) {
	var shards []string
	for i := range 50 {
		shards = append(shards, "shard-"+strconv.Itoa(i))
	}
	files := snapshots(b, large(), "1", shards...)
	b.ReportAllocs()
	for b.Loop() {
		x := NewWorkspaceIndex()
		for _, file := range files {
			if _, err := x.ReadSnapshot("one", bytes.NewReader(file)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
