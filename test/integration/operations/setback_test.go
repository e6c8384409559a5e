package operations

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestShardSetBack: a shard gets a copy of its data back while the front-proxy is away, and has written more
// since than was lost. The front-proxy does not go on where it was, at a revision that is another one
// now: it misses nothing, and has nothing that is gone.
func TestShardSetBack(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restores older data of a shard")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Shards: 2, ExtraArgs: map[string][]string{"front-proxy": {"--index-directory=" + t.TempDir()}}})
	const shard = "shard-1"
	data, backup := filepath.Join(e.Dir, ".kcp-1", "data"), filepath.Join(t.TempDir(), "backup")
	kept := e.WorkspaceOn("root", "kept", shard).Spec.Cluster
	served := func(cluster string) bool {
		code, _ := kit.Do(t, e.Proxy(), kit.Request{Method: http.MethodGet, Path: "/clusters/" + cluster + "/api/v1/namespaces/default"})
		return code == http.StatusOK
	}
	write := func(from, to int) (revision int64) {
		t.Helper()
		maps := kinds.ConfigMaps.InNamespace(e.ShardClients[shard].Cluster(kit.Path(kept)), "default")
		for n := from; n < to; n++ {
			made, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", n)}}, metav1.CreateOptions{})
			require.NoError(t, err)
			revision, err = strconv.ParseInt(made.ResourceVersion, 10, 64)
			require.NoError(t, err)
		}
		return revision
	}
	e.Component(shard).Stop()
	require.NoError(t, os.CopyFS(backup, os.DirFS(data)))
	e.Component(shard).Start()
	e.Component(shard).WaitReady()
	write(0, 500)
	lost := e.WorkspaceOn("root", "lost", shard).Spec.Cluster
	e.Eventually("the front-proxy knows it", func() bool { return served(lost) })
	seen := write(500, 501)
	e.Component("front-proxy").Stop()

	e.Component(shard).Stop()
	require.NoError(t, os.RemoveAll(data))
	require.NoError(t, os.CopyFS(data, os.DirFS(backup)))
	e.Component(shard).Start()
	e.Component(shard).WaitReady()
	// It is made on root's shard, where the front-proxy sees it: only its logical cluster could be missed.
	onRoot := *e
	onRoot.ProxyClient = e.ShardClients["root"]
	gained := onRoot.WorkspaceOn("root", "gained", shard).Spec.Cluster
	require.Less(t, write(1000, 1001), seen, "what has changed is before what the front-proxy had seen")
	require.Greater(t, write(1001, 2000), seen)

	e.Component("front-proxy").Start()
	e.Component("front-proxy").WaitReady()
	e.Eventually("the front-proxy knows what is new", func() bool { return served(gained) })
	require.True(t, served(kept))
	require.False(t, served(lost))
}
