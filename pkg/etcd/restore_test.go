package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var testShard = Identity{Kind: KindShard, Name: "root"}

// dataOf starts an etcd with the identity of the shard root.
func dataOf(t *testing.T, dir string) *Handle {
	t.Helper()
	o := NewOptions(dir, "/shardplane")
	o.UnsafeNoFsync = true
	h, err := o.Open(t.Context())
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	require.NoError(t, h.Claim(t.Context(), testShard))
	return h
}

func snapshotOf(t *testing.T, h *Handle) []byte {
	t.Helper()
	s, err := h.Snapshot(t.Context())
	require.NoError(t, err)
	var saved bytes.Buffer
	n, err := s.WriteTo(&saved)
	require.NoError(t, err)
	require.Equal(t, s.Size(), n)
	require.NoError(t, s.Close())
	return saved.Bytes()
}

func inFile(t *testing.T, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "snapshot")
	require.NoError(t, os.WriteFile(file, content, 0o600))
	return file
}

func restore(t *testing.T, file string) (dir string, r Restored) {
	t.Helper()
	dir = t.TempDir()
	r, err := Restore(t.Context(), RestoreConfig{File: file, DataDir: dir, Want: testShard, Prefix: "/shardplane"})
	require.NoError(t, err)
	return dir, r
}

// TestRestore saves during writes, restores, and verifies that acknowledged data exists, revisions increase, and watches
// expire.
func TestRestore(t *testing.T) {
	t.Parallel()
	h := dataOf(t, t.TempDir())
	_, err := h.client.Put(t.Context(), "/shardplane/a", "before")
	require.NoError(t, err)
	load, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	begun := make(chan struct{})
	working.Go(func() {
		for n := 0; load.Err() == nil; n++ {
			if _, err := h.client.Put(load, "/shardplane/load", strconv.Itoa(n)); err != nil && load.Err() == nil {
				t.Error(err)
			}
			if n == 100 {
				close(begun)
			}
		}
	})
	<-begun
	file := inFile(t, snapshotOf(t, h))
	stop()
	working.Wait()
	last, err := h.client.Put(t.Context(), "/shardplane/a", "after")
	require.NoError(t, err)

	dir, r := restore(t, file)
	require.Greater(t, r.To, last.Header.Revision)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the restore must leave only the data")

	again := dataOf(t, dir)
	got, err := again.client.KV.Get(t.Context(), "/shardplane/a")
	require.NoError(t, err)
	require.Equal(t, "before", string(got.Kvs[0].Value))
	require.GreaterOrEqual(t, got.Header.Revision, r.To)
	for _, revision := range []int64{got.Kvs[0].ModRevision, last.Header.Revision, last.Header.Revision + 1, r.To - 1} {
		response := <-again.client.Watch(t.Context(), "/shardplane/a", clientv3.WithRev(revision))
		require.ErrorContains(t, response.Err(), "compacted", "watch from revision %d, restored at %d", revision, r.To)
		_, err = again.client.KV.Get(t.Context(), "/shardplane/a", clientv3.WithRev(revision))
		require.ErrorContains(t, err, "compacted")
	}
	next, err := again.client.Put(t.Context(), "/shardplane/a", "new")
	require.NoError(t, err)
	require.Greater(t, next.Header.Revision, r.To)

	// A second restore of the same snapshot must use other revisions.
	_, second := restore(t, file)
	require.Equal(t, r.From, second.From)
	require.Greater(t, second.To, next.Header.Revision)
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	h := dataOf(t, t.TempDir())
	good := snapshotOf(t, h)
	changed := bytes.Clone(good)
	changed[len(changed)/2] ^= 1
	noDatabase := bytes.Repeat([]byte("no database "), 1000)
	sum := sha256.Sum256(noDatabase)
	_, err := h.client.Put(t.Context(), IdentityKey("/shardplane"), `{"format":3,"kind":"shard","name":"root"}`)
	require.NoError(t, err)
	newer := snapshotOf(t, h)
	for name, c := range map[string]struct {
		content []byte
		want    Identity
		prefix  string
		err     error
	}{
		"empty":            {nil, testShard, "/shardplane", ErrSnapshot},
		"truncated":        {good[:len(good)-4096], testShard, "/shardplane", ErrSnapshot},
		"without checksum": {good[:len(good)-sha256.Size], testShard, "/shardplane", ErrSnapshot},
		"damaged":          {changed, testShard, "/shardplane", ErrSnapshot},
		"not a snapshot":   {append(noDatabase, sum[:]...), testShard, "/shardplane", ErrSnapshot},
		"another shard":    {good, Identity{Kind: KindShard, Name: "other"}, "/shardplane", ErrIdentity},
		"another kind":     {good, Identity{Kind: KindCacheServer}, "/shardplane", ErrIdentity},
		"another prefix":   {good, testShard, "/elsewhere", ErrIdentity},
		"newer":            {newer, testShard, "/shardplane", ErrDataDirFormat},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Restore(t.Context(), RestoreConfig{File: inFile(t, c.content), DataDir: dir, Want: c.want, Prefix: c.prefix})
			require.ErrorIs(t, err, c.err)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries, "a failed restore must not leave files")
		})
	}
	t.Run("existing data", func(t *testing.T) {
		dir := t.TempDir()
		there := filepath.Join(Directory(dir), "file")
		require.NoError(t, os.Mkdir(Directory(dir), 0o700))
		require.NoError(t, os.WriteFile(there, nil, 0o600))
		_, err := Restore(t.Context(), RestoreConfig{File: inFile(t, good), DataDir: dir, Want: testShard, Prefix: "/shardplane"})
		require.ErrorContains(t, err, "not empty")
		require.FileExists(t, there)
	})
	t.Run("concurrent restore", func(t *testing.T) {
		dir := t.TempDir()
		_, release, err := stage(Directory(dir) + ".restoring")
		require.NoError(t, err)
		_, err = Restore(t.Context(), RestoreConfig{File: inFile(t, good), DataDir: dir, Want: testShard, Prefix: "/shardplane"})
		require.ErrorIs(t, err, ErrDataDirInUse)
		require.NoError(t, release())
	})
}

// TestRestoreAfterKilledRestore restores after a restore was killed.
func TestRestoreAfterKilledRestore(t *testing.T) {
	t.Parallel()
	file := inFile(t, snapshotOf(t, dataOf(t, t.TempDir())))
	dir := t.TempDir()
	half := filepath.Join(Directory(dir)+".restoring", subdirectory, memberDir)
	require.NoError(t, os.MkdirAll(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "half"), nil, 0o600))
	require.NoError(t, os.Mkdir(Directory(dir), 0o700)) // empty
	_, err := Restore(t.Context(), RestoreConfig{File: file, DataDir: dir, Want: testShard, Prefix: "/shardplane"})
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(Directory(dir), memberDir, "half"))
	dataOf(t, dir)
}

// TestSnapshotEnds ends snapshots that are being read.
func TestSnapshotEnds(t *testing.T) {
	t.Parallel()
	h := dataOf(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	canceled, err := h.Snapshot(ctx)
	require.NoError(t, err)
	cancel()
	_, err = canceled.WriteTo(io.Discard)
	require.ErrorContains(t, err, "canceled")
	require.NoError(t, canceled.Close())

	open, err := h.Snapshot(t.Context())
	require.NoError(t, err)
	stopped := make(chan struct{})
	go func() { h.Stop(); close(stopped) }()
	require.Eventually(t, h.embedded.calls.stopping, deadline, 1e6)
	_, err = open.WriteTo(io.Discard)
	require.ErrorContains(t, err, "stop")
	require.NoError(t, open.Close())
	<-stopped
	_, err = h.Snapshot(t.Context())
	require.ErrorContains(t, err, "stop")

	_, err = (&Handle{}).Snapshot(t.Context())
	require.ErrorIs(t, err, ErrExternal)
}
