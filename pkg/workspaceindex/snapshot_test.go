package workspaceindex

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
)

func snapshots(t testing.TB, x *Index, revision string, shards ...string) map[string][]byte {
	t.Helper()
	files, writers := map[string]*bytes.Buffer{}, map[string]*SnapshotWriter{}
	for _, shard := range shards {
		files[shard] = &bytes.Buffer{}
		writers[shard] = NewSnapshotWriter(files[shard], []byte(shard))
	}
	x.WriteSnapshots(writers)
	written := map[string][]byte{}
	for shard, w := range writers {
		require.NoError(t, w.End(Revisions{{Version: revision}, {Version: revision}}))
		written[shard] = files[shard].Bytes()
	}
	return written
}

func restored(t testing.TB, files map[string][]byte, urls map[string]string) *Index {
	t.Helper()
	x := NewWorkspaceIndex()
	for shard, url := range urls {
		x.UpsertShard(shard, url)
	}
	for _, shard := range slices.Sorted(maps.Keys(files)) {
		read, err := x.ReadSnapshot(shard, bytes.NewReader(files[shard]))
		require.NoError(t, err)
		require.Equal(t, shard, string(read.Origin))
	}
	return x
}

// TestSnapshotModel: an index restored from snapshots equals the one that wrote them, for any announcements.
func TestSnapshotModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		x, m := NewWorkspaceIndex(), newModel()
		for range r.IntN(100) {
			m.apply(x, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()))
		}
		m.check(t, restored(t, snapshots(t, x, "7", shardNames...), m.urls))
	}
}

// TestSnapshotOfChanges writes snapshots during migrations: snapshots together with the changes since the start of the
// writing are complete.
func TestSnapshotOfChanges(t *testing.T) {
	const clusters = 2000
	x := NewWorkspaceIndex()
	name := func(i int) logicalcluster.Name { return logicalcluster.Name(fmt.Sprintf("c%d", i)) }
	for i := range clusters {
		x.UpsertLogicalCluster("one", LogicalCluster{Name: name(i), Phase: ready})
		x.UpsertWorkspace("one", Workspace{Parent: "root", Name: name(i).String(), Cluster: name(i)})
	}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	for seed := range uint64(2) {
		writing.Go(func() {
			for r := rand.New(rand.NewPCG(seed, 5)); ; {
				select {
				case <-stop:
					return
				default:
				}
				i := r.IntN(clusters)
				x.UpsertLogicalCluster("two", LogicalCluster{Name: name(i), Shard: "two", Phase: ready})
				x.UpsertWorkspace("two", Workspace{Parent: "root", Name: name(i).String(), Cluster: name(i)})
				x.DeleteLogicalCluster("two", name(i))
				x.DeleteWorkspace("two", "root", name(i).String())
			}
		})
	}
	for range 20 {
		files := snapshots(t, x, "1", shardNames...)
		begun := restored(t, map[string][]byte{"one": files["one"]}, nil)
		require.Equal(t, Stats{LogicalClusters: clusters, Workspaces: clusters}, begun.Stats(), "the content of the shard must not change")
	}
	close(stop)
	writing.Wait()
}

func TestSnapshotRevisions(t *testing.T) {
	var file bytes.Buffer
	w := NewSnapshotWriter(&file, []byte("one"))
	threeLevels().WriteSnapshots(map[string]*SnapshotWriter{"one": w})
	first, second := Revisions{{"1", "a"}, {"2", "b"}}, Revisions{{"3", ""}, {"4", "c"}}
	require.NoError(t, w.End(first))
	complete := file.Len()
	require.NoError(t, w.End(second))
	for size := range file.Len() + 1 {
		x := NewWorkspaceIndex()
		read, err := x.ReadSnapshot("one", bytes.NewReader(file.Bytes()[:size]))
		switch {
		case size < complete:
			require.ErrorIs(t, err, errSnapshot, size)
		case size < file.Len():
			require.Equal(t, first, read.Revisions)
		default:
			require.Equal(t, second, read.Revisions)
		}
		if err == nil {
			require.Equal(t, 2, x.Stats().LogicalClusters)
		}
	}
}

// FuzzSnapshot: reading any file terminates, and the resulting index can be written.
func FuzzSnapshot(f *testing.F) {
	files := snapshots(f, threeLevels(), "7", shardNames...)
	for _, file := range files {
		f.Add(file)
		f.Add(file[:len(file)/2])
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		x := NewWorkspaceIndex()
		read, err := x.ReadSnapshot("one", bytes.NewReader(file))
		if err == nil {
			again := restored(t, snapshots(t, x, read.Revisions[0].Version, shardNames...), nil)
			require.Equal(t, x.Stats(), again.Stats())
		}
		x.DeleteShard("one")
		isEmpty(t, x)
	})
}

// TestDamagedSnapshot: a file with one changed byte is rejected, or has the same content.
func TestDamagedSnapshot(t *testing.T) {
	file := snapshots(t, threeLevels(), "7", "one")["one"]
	for i := range file {
		damaged := bytes.Clone(file)
		damaged[i] ^= 0x10
		_, err := NewWorkspaceIndex().ReadSnapshot("one", bytes.NewReader(damaged))
		require.ErrorIs(t, err, errSnapshot, i)
	}
}
