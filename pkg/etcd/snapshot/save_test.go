package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/etcd/snapshot"
)

// serve starts a server and returns a kubeconfig for one of its logical clusters.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "here",
"clusters": [{"name": "here", "cluster": {"server": "%s/clusters/root"}}], "contexts": [{"name": "here", "context": {"cluster": "here"}}]}`, server.URL), 0o600))
	return file
}

func TestSaveRunning(t *testing.T) {
	content := bytes.Repeat([]byte("database"), 1<<15)
	sum := sha256.Sum256(content)
	whole := slices.Concat(content, sum[:])
	for name, c := range map[string]struct {
		response []byte
		length   int
		err      string
	}{
		"whole":            {whole, len(whole), ""},
		"truncated":        {whole[:len(whole)/2], len(whole), "was truncated"},
		"ends early":       {whole[:len(whole)/2], len(whole) / 2, etcd.ErrSnapshot.Error()},
		"without checksum": {content, len(content), etcd.ErrSnapshot.Error()},
		"empty":            {nil, 0, etcd.ErrSnapshot.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/etcd/snapshot" {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Length", strconv.Itoa(c.length))
				_, _ = w.Write(c.response)
			})
			dir := t.TempDir()
			file := filepath.Join(dir, "saved")
			var out bytes.Buffer
			err := snapshot.Save(t.Context(), snapshot.Source{Kubeconfig: kubeconfig}, file, false, &out)
			entries, dirErr := os.ReadDir(dir)
			require.NoError(t, dirErr)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Empty(t, entries, "a failed save must not leave files")
				return
			}
			require.NoError(t, err)
			require.Len(t, entries, 1)
			saved, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, whole, saved)
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode(), "only the owner must have access to the snapshot")
			require.Contains(t, out.String(), fmt.Sprintf("%x", sum))

			// An existing file is kept without overwrite.
			require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
			require.ErrorContains(t, snapshot.Save(t.Context(), snapshot.Source{Kubeconfig: kubeconfig}, file, false, &out), "--overwrite")
			saved, err = os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, "old", string(saved))
			require.NoError(t, snapshot.Save(t.Context(), snapshot.Source{Kubeconfig: kubeconfig}, file, true, &out))
			saved, err = os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, whole, saved)
		})
	}
	t.Run("rejected", func(t *testing.T) {
		kubeconfig := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "the reason", http.StatusForbidden) })
		err := snapshot.Save(t.Context(), snapshot.Source{Kubeconfig: kubeconfig}, filepath.Join(t.TempDir(), "saved"), false, &bytes.Buffer{})
		require.ErrorContains(t, err, "the reason")
		require.ErrorContains(t, err, "not a front-proxy")
	})
}

// TestSaveStopped saves the data of a killed server, whose last writes are only in etcd's log.
func TestSaveStopped(t *testing.T) {
	dataDir, killed := t.TempDir(), t.TempDir()
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: etcd.Directory(dataDir), UnsafeNoFsync: true})
	require.NoError(t, err)
	_, err = server.Client().Put(t.Context(), etcd.IdentityKey("/shardplane"), `{"format":2,"kind":"shard","name":"root"}`)
	require.NoError(t, err)
	for n := range 100 {
		_, err = server.Client().Put(t.Context(), "/shardplane/a", strconv.Itoa(n))
		require.NoError(t, err)
	}
	require.NoError(t, os.CopyFS(killed, os.DirFS(dataDir)))
	file := filepath.Join(t.TempDir(), "saved")
	err = snapshot.Save(t.Context(), snapshot.Source{DataDir: dataDir}, file, false, &bytes.Buffer{})
	require.ErrorIs(t, err, etcd.ErrDataDirInUse)
	require.ErrorContains(t, err, "--kubeconfig")
	require.NoFileExists(t, file)
	server.Stop()

	require.NoError(t, snapshot.Save(t.Context(), snapshot.Source{DataDir: killed}, file, false, &bytes.Buffer{}))
	restored := t.TempDir()
	_, err = etcd.Restore(t.Context(), etcd.RestoreConfig{File: file, DataDir: restored, Want: etcd.Identity{Kind: etcd.KindShard, Name: "root"}, Prefix: "/shardplane"})
	require.NoError(t, err)
	again, err := etcd.Start(t.Context(), etcd.Config{DataDir: etcd.Directory(restored), UnsafeNoFsync: true})
	require.NoError(t, err)
	defer again.Stop()
	got, err := again.Client().KV.Get(t.Context(), "/shardplane/a")
	require.NoError(t, err)
	require.Equal(t, "99", string(got.Kvs[0].Value))

	missing := filepath.Join(t.TempDir(), "missing")
	err = snapshot.Save(t.Context(), snapshot.Source{DataDir: missing}, filepath.Join(t.TempDir(), "saved"), false, &bytes.Buffer{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoDirExists(t, missing, "saving must not create a data directory")
}

func TestSource(t *testing.T) {
	for name, c := range map[string]struct {
		source snapshot.Source
		ok     bool
	}{
		"running": {snapshot.Source{Kubeconfig: "k", Context: "c"}, true},
		"stopped": {snapshot.Source{DataDir: "d"}, true},
		"neither": {snapshot.Source{}, false},
		"both":    {snapshot.Source{Kubeconfig: "k", DataDir: "d"}, false},
		"context": {snapshot.Source{DataDir: "d", Context: "c"}, false},
	} {
		err := c.source.Validate()
		require.Equal(t, c.ok, err == nil, "%s: %v", name, err)
	}
}
