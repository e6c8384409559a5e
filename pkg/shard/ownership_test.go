package shard_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/shard"
	"github.com/shardplane/shardplane/test/harness"
)

// TestDataOfAnotherShard starts a shard with the data of another, which it must
// neither serve nor write to.
func TestDataOfAnotherShard(t *testing.T) {
	t.Parallel()
	url := harness.Etcd(t, transport.TLSInfo{})
	root := startReplica(t, url)
	root.serves("w")

	status, body := send(t, root.config, http.MethodGet, "/etcd/snapshot")
	require.Equal(t, http.StatusNotImplemented, status)
	require.Contains(t, string(body), "etcdctl snapshot save", "snapshots of an external etcd must be rejected")

	data := etcd.NewOptions("", "/shardplane")
	data.Servers = []string{url}
	handle, err := data.Open(t.Context())
	require.NoError(t, err)
	defer handle.Stop()
	key := etcd.IdentityKey("/shardplane")
	identity := func() string {
		response, err := handle.Client().KV.Get(t.Context(), key)
		require.NoError(t, err)
		if len(response.Kvs) == 0 {
			return ""
		}
		return string(response.Kvs[0].Value)
	}
	const rootsOwn = `{"format":2,"kind":"shard","name":"root"}`
	require.JSONEq(t, rootsOwn, identity())

	other := options(t)
	other.Name, other.RootKubeconfig = "other", filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(other.RootKubeconfig, nil, 0o600))
	other.Etcd.Servers = []string{url}
	_, err = shard.NewShard(t.Context(), other.Complete())
	require.ErrorIs(t, err, etcd.ErrIdentity)
	require.ErrorContains(t, err, "--name root")
	// Data without a version is from before v0.1.0.
	_, err = handle.Client().Client.Delete(t.Context(), key)
	require.NoError(t, err)
	_, err = shard.NewShard(t.Context(), other.Complete())
	require.ErrorIs(t, err, etcd.ErrDataDirFormat)
	require.Empty(t, identity(), "the rejected shard must not write")
}

// send sends a request, optionally as a member of groups.
func send(t *testing.T, config *rest.Config, method, path string, groups ...string) (int, []byte) {
	t.Helper()
	header := http.Header{}
	if len(groups) > 0 {
		header = http.Header{"Impersonate-User": {"alice"}, "Impersonate-Group": groups}
	}
	status, body, err := harness.Send(t.Context(), config, method, path, header, "")
	require.NoError(t, err)
	return status, body
}

// TestSnapshot checks the required permissions of snapshots.
func TestSnapshot(t *testing.T) {
	o := options(t)
	// Paths for all users must not include this one.
	o.Authorization.AlwaysAllowPaths = append(o.Authorization.AlwaysAllowPaths, "/etcd/*")
	config := start(t, o)
	const path = "/etcd/snapshot"
	for name, as := range map[string][]string{"itself": nil, "member of system:masters": {"system:masters"}, "administrator": {"system:kcp:admin"}} {
		status, body := send(t, config, http.MethodGet, path, as...)
		require.Equal(t, http.StatusOK, status, "%s: %.200s", name, body)
		require.Greater(t, len(body), 1<<14)
		require.Equal(t, 32, len(body)%512, "the snapshot must end with a checksum")
	}
	for _, group := range []string{"system:authenticated", "system:kcp:external-logical-cluster-admin", "anything"} {
		status, _ := send(t, config, http.MethodGet, path, group)
		require.Equal(t, http.StatusForbidden, status, group)
	}
	for _, cluster := range []string{"root", "system:admin"} {
		status, body := send(t, config, http.MethodGet, "/clusters/"+cluster+path)
		require.Equal(t, http.StatusNotImplemented, status, "%.200s", body)
	}
	status, _ := send(t, config, http.MethodPost, path)
	require.Equal(t, http.StatusMethodNotAllowed, status)
}
