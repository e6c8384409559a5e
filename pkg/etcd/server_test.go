package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 30 * time.Second

func start(t *testing.T, dir string) *Server {
	t.Helper()
	return startWith(t, Config{DataDir: dir, UnsafeNoFsync: true})
}

func startWith(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

func put(t *testing.T, s *Server, key, value string) {
	t.Helper()
	_, err := s.Client().Put(t.Context(), key, value)
	require.NoError(t, err)
}

func get(t *testing.T, s *Server, key string) string {
	t.Helper()
	resp, err := s.Client().KV.Get(t.Context(), key)
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	return string(resp.Kvs[0].Value)
}

func TestInProcessClient(t *testing.T) {
	t.Parallel()
	s := startWith(t, Config{DataDir: t.TempDir()}) // with fsync
	put(t, s, "a", "1")

	watch := s.Client().Watch(t.Context(), "a", clientv3.WithRev(1), clientv3.WithPrevKV())
	response := <-watch
	require.Len(t, response.Events, 1)
	require.NoError(t, s.Client().RequestProgress(t.Context()))
	response = <-watch
	require.True(t, response.IsProgressNotify())

	lease, err := s.Client().Grant(t.Context(), 1)
	require.NoError(t, err)
	_, err = s.Client().Put(t.Context(), "leased", "1", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		resp, err := s.Client().KV.Get(t.Context(), "leased")
		return err == nil && len(resp.Kvs) == 0
	}, deadline, 10*time.Millisecond)

	txn, err := s.Client().Txn(t.Context()).If(clientv3.Compare(clientv3.Version("a"), "=", 1)).Then(clientv3.OpPut("a", "2")).Commit()
	require.NoError(t, err)
	require.True(t, txn.Succeeded)
	_, err = s.Client().Compact(t.Context(), txn.Header.Revision)
	require.NoError(t, err)
	response = <-s.Client().Watch(t.Context(), "a", clientv3.WithRev(1))
	require.ErrorContains(t, response.Err(), "compacted")

	status, err := s.Client().Status(t.Context(), "")
	require.NoError(t, err)
	require.NotEmpty(t, status.Version)
	// No port is open.
	require.Empty(t, s.Client().Endpoints())
	require.Empty(t, s.etcd.Clients)
	require.Empty(t, s.etcd.Peers)
}

// TestFull verifies that an etcd that was full accepts writes after a restart with a larger quota.
func TestFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(quota int64) *Server {
		return startWith(t, Config{DataDir: dir, UnsafeNoFsync: true, QuotaBytes: quota})
	}
	s, value := open(4<<20), strings.Repeat("x", 1<<20)
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 100, "the quota is not enforced")
		_, err = s.Client().Put(t.Context(), strconv.Itoa(n), value)
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	_, err = s.Client().Delete(t.Context(), "0")
	require.NoError(t, err, "requests that free space must be accepted")
	s.Stop()

	s = open(4 << 20)
	for n := 0; err == nil; n++ {
		require.Less(t, n, 100, "the quota is not enforced after a restart")
		_, err = s.Client().Put(t.Context(), strconv.Itoa(n), value)
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	s.Stop()

	s = open(64 << 20)
	put(t, s, "more", value)
}

func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	var working sync.WaitGroup
	begun := make(chan struct{}, 100)
	for i := range 8 {
		working.Go(func() {
			for n := 0; ; n++ {
				if _, err := s.Client().Put(t.Context(), fmt.Sprint(i), fmt.Sprint(n)); err != nil {
					return
				}
				if _, err := s.Client().KV.Get(t.Context(), "", clientv3.WithPrefix()); err != nil {
					return
				}
				if n == 10 {
					begun <- struct{}{}
				}
			}
		})
		working.Go(func() {
			for range s.Client().Watch(t.Context(), fmt.Sprint(i), clientv3.WithPrevKV()) {
			}
		})
	}
	for range 8 {
		<-begun
	}
	s.Stop()
	working.Wait()

	// No call reaches the closed database.
	ctx, client := t.Context(), s.Client()
	_, get := client.KV.Get(ctx, "a")
	_, txn := client.Txn(ctx).Then(clientv3.OpGet("a")).Commit()
	_, remove := client.Client.Delete(ctx, "a")
	_, compact := client.Compact(ctx, 1)
	_, grant := client.Grant(ctx, 1)
	_, left := client.TimeToLive(ctx, 1)
	_, status := client.Status(ctx, "")
	_, alarms := client.AlarmList(ctx)
	_, watches := <-client.Watch(ctx, "a")
	for _, err := range []error{get, txn, remove, compact, grant, left, status, alarms} {
		require.ErrorContains(t, err, "stop")
	}
	require.False(t, watches)
}

func TestStartIsRefused(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	_, err := Start(ctx, Config{DataDir: dir})
	require.ErrorIs(t, err, context.Canceled)
	start(t, dir) // nothing remains locked
}

// TestFirstStartIsInterrupted starts after a first start that ended before etcd was a member of its cluster.
func TestFirstStartIsInterrupted(t *testing.T) {
	t.Parallel()
	for range 5 {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Start(ctx, Config{DataDir: dir, UnsafeNoFsync: true})
		require.ErrorIs(t, err, context.Canceled)
		require.FileExists(t, filepath.Join(dir, firstStartFile))

		s := start(t, dir)
		require.NoFileExists(t, filepath.Join(dir, firstStartFile))
		put(t, s, "a", "1")
		s.Stop()
		<-s.Done()
		again := start(t, dir)
		require.Equal(t, "1", get(t, again, "a"), "data written after the server was ready must be kept")
		again.Stop()
	}
}

func TestDataDirInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	_, err := Start(t.Context(), Config{DataDir: dir})
	require.ErrorIs(t, err, ErrDataDirInUse)
	require.ErrorContains(t, err, fmt.Sprintf("process %d", os.Getpid()))
	require.ErrorContains(t, err, "--data-dir")
	put(t, s, "a", "1") // the first one is not affected
	s.Stop()
	start(t, dir)
}

func TestUnwritableDataDir(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Start(t.Context(), Config{DataDir: filepath.Join(file, "dir")})
	require.ErrorContains(t, err, "choose a writable --data-dir")
	_, err = Start(t.Context(), Config{DataDir: file})
	require.ErrorContains(t, err, "choose a writable --data-dir")
}

// TestDamagedDataDir verifies that damaged data results in an error and the directory is unchanged.
func TestDamagedDataDir(t *testing.T) {
	t.Parallel()
	const db = memberDir + "/snap/db"
	overwrite := func(name, content string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600) }
	}
	cases := map[string]struct {
		damage func(dir string) error
		want   error
	}{
		"newer format":        {overwrite(formatFile, "3\n"), ErrDataDirFormat},
		"before v0.1.0":       {overwrite(formatFile, "1\n"), ErrDataDirFormat},
		"another application": {func(dir string) error { return os.Remove(filepath.Join(dir, formatFile)) }, ErrDataDirFormat},
		"empty database":      {func(dir string) error { return os.Truncate(filepath.Join(dir, db), 0) }, ErrDataDirCorrupt},
		"truncated database": {func(dir string) error {
			info, err := os.Stat(filepath.Join(dir, db))
			require.NoError(t, err)
			return os.Truncate(filepath.Join(dir, db), info.Size()/16)
		}, ErrDataDirCorrupt},
		"garbage database": {overwrite(db, string(make([]byte, 1<<16))), ErrDataDirCorrupt},
		"garbage in the log": {func(dir string) error {
			logs, err := filepath.Glob(filepath.Join(dir, memberDir, "wal", "*.wal"))
			require.NoError(t, err)
			f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("garbage garbage garbage garbage"), 200)
			return errors.Join(err, f.Close())
		}, ErrDataDirCorrupt},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := start(t, dir)
			put(t, s, "a", "1")
			s.Stop()
			backup := t.TempDir()
			require.NoError(t, os.CopyFS(backup, os.DirFS(dir)))
			require.NoError(t, c.damage(dir))
			for range 2 {
				_, err := Start(t.Context(), Config{DataDir: dir})
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, dir)
			}
			require.Equal(t, "1", get(t, start(t, backup), "a"))
		})
	}
}

// TestSnapshotsOften verifies that a start reads a thousand entries, not ten thousand.
func TestSnapshotsOften(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	for range snapshotEntries + snapshotEntries/10 {
		put(t, s, "key", "value")
	}
	require.Eventually(t, func() bool {
		taken, err := filepath.Glob(filepath.Join(dir, "member", "snap", "*.snap"))
		return err == nil && len(taken) > 0
	}, deadline, 10*time.Millisecond)
	s.Stop()
	require.Equal(t, "value", get(t, start(t, dir), "key"))
}
