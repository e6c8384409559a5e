package frontproxy

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
	"github.com/shardplane/shardplane/test/ports"
)

// savedWorld is a world with an index directory, and a workspace on shard one.
func savedWorld(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, "root", "one")
	w.options.IndexDirectory = filepath.Join(w.dir, "index")
	w.child(t, "one", "a", "aaaa")
	w.ready(t, "root:a", "one")
	return w
}

// configMap writes an object that is not in the index, and returns its version.
func (w *world) configMap(t testing.TB, shard, cluster string) string {
	t.Helper()
	meta := metaIn(cluster, "other")
	meta.Namespace = "default"
	return w.shards[shard].data.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: meta})
}

func (w *world) becomesComplete(t testing.TB) {
	t.Helper()
	require.Eventually(t, w.proxy.shards.complete, timeout, 5*time.Millisecond)
}

// TestStartsWithoutShards checks that a front-proxy starts with its saved index while shards are
// unreachable, returns 503 for unknown workspaces, and updates the index later.
func TestStartsWithoutShards(t *testing.T) {
	t.Parallel()
	w := savedWorld(t)
	w.stop()
	w.shards["one"].kill()
	w.shards["root"].kill()
	w.ready(t)
	target, outcome := w.proxy.shards.index.Lookup("root:a")
	require.Equal(t, workspaceindex.Found, outcome)
	require.Equal(t, "one", target.Shard)
	jane := w.person(t, "jane")
	s := jane.fails(t, "/clusters/root:new/api", http.StatusServiceUnavailable)
	require.Contains(t, s.Message, "not all workspaces are known")

	// Changes are visible when the shards are reachable.
	w.child(t, "one", "new", "nnnn")
	w.shards["one"].data.Delete(t, kinds.LogicalClusters.GroupVersionResource, "", "aaaa", "", "cluster")
	lists, _ := w.shards["one"].data.Requests()
	w.shards["root"].start(t)
	require.Equal(t, "root", jane.echoed(t, "/clusters/root/api").Shard, "the root shard must not depend on other shards")
	w.shards["one"].start(t)
	w.becomesComplete(t)
	require.Equal(t, "one", jane.echoed(t, "/clusters/root:new/api").Shard)
	jane.want(t, "/clusters/root:a/api", http.StatusForbidden)
	listed, _ := w.shards["one"].data.Requests()
	require.Equal(t, lists, listed, "watches must resume without a new list")
}

// TestStaleIndex checks that a 403 of a shard that has not been read becomes 503.
func TestStaleIndex(t *testing.T) {
	t.Parallel()
	w := savedWorld(t)
	w.stop()
	w.shards["one"].data.Fail(http.StatusServiceUnavailable)
	w.shards["one"].admits("other")
	w.ready(t)
	start := time.Now()
	jane := w.person(t, "jane")
	res, body := jane.get(t, "/clusters/root:a/api")
	status(t, res, body, http.StatusServiceUnavailable)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.GreaterOrEqual(t, time.Since(start), w.options.IndexTimeout)
	w.shards["one"].data.Fail(0)
	w.becomesComplete(t)
	jane.want(t, "/clusters/root:a/api", http.StatusForbidden)
}

// TestOtherDataAfterTheStart checks that entries which no longer exist are removed after a shard
// was compacted or restored.
func TestOtherDataAfterTheStart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"compacted":                 func(w *world) { w.shards["one"].data.Compact() },
		"restored, lower revision":  func(w *world) { w.shards["one"].data.Rollback(50) },
		"restored, higher revision": func(w *world) { w.shards["one"].data.Rollback(1 << 50) },
	} {
		t.Run(name, func(t *testing.T) {
			w := savedWorld(t)
			w.stop()
			w.shards["one"].data.Delete(t, kinds.LogicalClusters.GroupVersionResource, "", "aaaa", "", "cluster")
			w.cluster(t, "one", "bbbb")
			change(w)
			w.ready(t)
			w.becomesComplete(t)
			_, outcome := w.proxy.shards.index.Lookup("aaaa")
			require.Equal(t, workspaceindex.Unknown, outcome)
			w.awaitIndexed(t, "bbbb", "one")
			require.Equal(t, workspaceindex.Stats{Shards: 2, LogicalClusters: 2, Workspaces: 1}, w.proxy.shards.index.Stats())
		})
	}
}

// TestStopsBeforeRelist checks that a front-proxy that stops after a shard has rejected the resourceVersion of its
// watches, but before it has listed the shard again, saves the Shard object and the entries of this shard.
func TestStopsBeforeRelist(t *testing.T) {
	t.Parallel()
	w := savedWorld(t)
	one := w.shards["one"].data
	one.Fail(http.StatusGone)
	one.Break()
	require.Eventually(t, func() bool {
		return w.proxy.shards.follower("one").revisions() == workspaceindex.Revisions{}
	}, timeout, time.Millisecond)
	w.stop()
	w.shards["root"].kill()
	one.Delete(t, kinds.LogicalClusters.GroupVersionResource, "", "aaaa", "", "cluster")
	w.cluster(t, "one", "bbbb")
	w.ready(t)
	target, outcome := w.proxy.shards.index.Lookup("root:a")
	require.Equal(t, workspaceindex.Found, outcome)
	require.Equal(t, "one", target.Shard)

	one.Fail(0)
	w.awaitIndexed(t, "bbbb", "one")
	require.Equal(t, "one", w.person(t, "jane").echoed(t, "/clusters/bbbb/api").Shard)
	require.Eventually(t, func() bool {
		_, outcome := w.proxy.shards.index.Lookup("aaaa")
		return outcome == workspaceindex.Unknown
	}, timeout, time.Millisecond, "the shard must be listed again")
}

// TestStopsBeforeNewAddressResponds checks that the new address of a shard is saved before it has responded.
func TestStopsBeforeNewAddressResponds(t *testing.T) {
	t.Parallel()
	w := savedWorld(t)
	w.becomesComplete(t)
	w.proxy.shards.saver.save(t.Context(), w.proxy.shards.object)
	address := fmt.Sprintf("127.0.0.1:%d", ports.Free(t, 1))
	w.announce(t, "one", "https://"+address)
	require.Eventually(t, func() bool {
		f := w.proxy.shards.follower("one")
		return f != nil && f.host == address
	}, timeout, time.Millisecond)
	w.stop()
	w.shards["root"].kill()
	w.ready(t)
	target, _ := w.proxy.shards.index.Lookup("root:a")
	require.Equal(t, "one", target.Shard)
	require.Equal(t, "https://"+address, w.proxy.shards.object("one").Spec.BaseURL)
}

// TestDamagedFiles checks that invalid files are ignored, and that files of removed shards are deleted.
func TestDamagedFiles(t *testing.T) {
	w := savedWorld(t)
	w.stop()
	path := filepath.Join(w.options.IndexDirectory, "one"+savedSuffix)
	good := mustRead(t, path)
	for name, content := range map[string][]byte{
		"empty": {}, "garbage": []byte("garbage"), "truncated": good[:len(good)/2], "of another shard": mustRead(t, filepath.Join(w.options.IndexDirectory, "root"+savedSuffix)),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, content, 0o600))
			remaining := filepath.Join(w.options.IndexDirectory, "one"+writingInfix+"1")
			require.NoError(t, os.WriteFile(remaining, content, 0o600))
			w.ready(t)
			defer w.stop()
			w.becomesComplete(t)
			w.awaitIndexed(t, "root:a", "one")
			require.Equal(t, workspaceindex.Stats{Shards: 2, LogicalClusters: 2, Workspaces: 1}, w.proxy.shards.index.Stats())
			require.NoFileExists(t, remaining)
		})
	}
	require.FileExists(t, path)
	w.withdraw(t, "one")
	w.ready(t)
	require.Eventually(t, func() bool { _, err := os.Stat(path); return os.IsNotExist(err) }, timeout, 5*time.Millisecond)
	require.Equal(t, 1, w.proxy.shards.index.Stats().LogicalClusters)
	w.stop()

	w.options.IndexDirectory = path + "/below"
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := NewFrontProxy(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, "--index-directory")
}

// killedDirectory is set in the process that TestKilledWhileSaving kills.
const killedDirectory = "TEST_INDEX_DIRECTORY"

func TestKilledWhileSaving(t *testing.T) {
	t.Parallel()
	if directory := os.Getenv(killedDirectory); directory != "" {
		savesAllTheTime(t, directory)
		return
	}
	directory := t.TempDir()
	for round := range 4 {
		process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWhileSaving$")
		process.Env = append(os.Environ(), killedDirectory+"="+directory, "TMPDIR="+t.TempDir()) // it cannot delete its own
		require.NoError(t, process.Start())
		begun := filepath.Join(directory, "root"+savedSuffix)
		require.Eventually(t, func() bool {
			found, err := os.Stat(begun)
			return err == nil && found.Size() > int64(2000)
		}, timeout, time.Millisecond)
		for range 5 * round { // a different time for each round
			last, err := os.Stat(begun)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				found, err := os.Stat(begun)
				return err == nil && !os.SameFile(last, found)
			}, timeout, time.Millisecond)
		}
		require.NoError(t, process.Process.Kill())
		require.Error(t, process.Wait())

		s, err := newSaver(directory, workspaceindex.NewWorkspaceIndex())
		require.NoError(t, err)
		require.Len(t, s.restore(t.Context()), 1)
		requireAllUntil(t, s.index, s.files["root"].from[workspaceindex.Workspaces].Version)
		require.NoError(t, os.Remove(begun))
	}
}

// manyWorkspaces is the number of workspaces before the first save.
const manyWorkspaces = 200

// savesAllTheTime adds workspaces, named after their versions, and saves until it is killed.
func savesAllTheTime(t *testing.T, directory string) {
	t.Helper()
	w := newWorld(t, "root")
	w.options.IndexDirectory = directory
	last, err := strconv.Atoi(w.configMap(t, "root", "root"))
	require.NoError(t, err)
	next := func() {
		last++
		w.workspace(t, "root", "root", fmt.Sprintf("w%d", last), "")
	}
	for range manyWorkspaces {
		next()
	}
	w.ready(t)
	for {
		next()
		w.proxy.shards.saver.save(context.Background(), w.proxy.shards.object)
	}
}

// requireAllUntil checks that an index contains all workspaces up to a version. It may contain
// later ones, which were added during the save.
func requireAllUntil(t *testing.T, index *workspaceindex.Index, version string) {
	t.Helper()
	until, err := strconv.Atoi(version)
	require.NoError(t, err)
	found := 0
	for n := range until + 1 {
		switch _, outcome := index.Lookup(fmt.Sprintf("root:w%d", n)); {
		case outcome == workspaceindex.Pending:
			found++
		case found > 0:
			require.Fail(t, "a workspace is missing", "%d of 0 to %d", n, until)
		}
	}
	require.GreaterOrEqual(t, found, manyWorkspaces)
}

// TestSaves checks that a file is rewritten after changes, that otherwise only its revisions are
// updated, and that another process can restore both.
func TestSaves(t *testing.T) {
	w := savedWorld(t)
	s := w.proxy.shards
	path := filepath.Join(w.options.IndexDirectory, "one"+savedSuffix)
	saved := func() os.FileInfo {
		s.saver.save(t.Context(), s.object)
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info
	}
	w.becomesComplete(t)
	first := saved()
	require.Equal(t, first.Size(), saved().Size(), "nothing has changed")

	w.configMap(t, "one", "aaaa")
	w.shards["one"].data.Bookmark()
	require.Eventually(t, func() bool { return saved().Size() > first.Size() }, timeout, 5*time.Millisecond)
	require.True(t, os.SameFile(first, saved()))

	w.cluster(t, "one", "bbbb")
	w.awaitIndexed(t, "bbbb", "one")
	require.False(t, os.SameFile(first, saved()))
	other, err := newSaver(w.options.IndexDirectory, workspaceindex.NewWorkspaceIndex())
	require.NoError(t, err)
	require.Len(t, other.restore(t.Context()), 2)
	_, outcome := other.index.Lookup("bbbb")
	require.Equal(t, workspaceindex.Found, outcome)
}
