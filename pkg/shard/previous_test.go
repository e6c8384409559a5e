package shard_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// TestDataOfThePreviousVersion opens a data directory that the previous version
// has written, as a shard does that is upgraded. testdata/previous/make.sh says
// how it was made; make it anew with each release.
func TestDataOfThePreviousVersion(t *testing.T) {
	const previous = "testdata/previous/"
	o := options(t)
	unpack(t, previous+"data.tar.gz", o.Etcd.DataDir)
	o.Authentication.ServiceAccounts.KeyFiles = []string{previous + "service-account.pub"}
	config := start(t, o)
	require.Eventually(t, func() bool { return ready(t, config) }, time.Minute, 20*time.Millisecond)

	token, err := os.ReadFile(previous + "token")
	require.NoError(t, err)
	robot := rest.AnonymousClientConfig(config)
	robot.BearerToken = string(token)
	master, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	account, err := rest.HTTPClientFor(robot)
	require.NoError(t, err)

	const (
		kept      = "/clusters/root:kept"
		configMap = kept + "/api/v1/namespaces/default/configmaps/kept"
		widget    = kept + "/apis/example.com/v1/namespaces/default/widgets/kept"
		secrets   = kept + "/api/v1/namespaces/default/secrets"
	)
	holds := func(c *http.Client, path, want string) {
		t.Helper()
		status, body := ask(t, c, http.MethodGet, config.Host+path)
		require.Equal(t, http.StatusOK, status, "%s: %.200s", path, body)
		require.Contains(t, string(body), want, path)
	}
	holds(master, "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/kept", `"phase":"Ready"`)
	holds(master, kept+"/apis/tenancy.kcp.io/v1alpha1/workspaces/below", `"phase":"Ready"`)
	holds(master, "/clusters/root:kept:below/api/v1/namespaces/default", `"phase":"Active"`)
	holds(master, configMap, `"written":"before"`)
	holds(master, widget, `"size":7`)
	holds(master, "/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters", `"root:kept:below"`)

	// They get bindings to what they have of the system, and go on.
	for _, cluster := range []string{"/clusters/root", kept} {
		require.Eventually(t, func() bool {
			status, body := ask(t, master, http.MethodGet, config.Host+cluster+"/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
			return status == http.StatusOK && strings.Contains(string(body), `"internal.shardplane.io/system-bindings":"true"`)
		}, time.Minute, 20*time.Millisecond)
		holds(master, cluster+"/apis/apis.kcp.io/v1alpha2/apibindings", `"resource":"workspaces"`)
	}
	holds(master, kept+"/apis/tenancy.kcp.io/v1alpha1/workspaces/below", `"phase":"Ready"`)
	holds(master, "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspacetypes/universal", `"export":"tenancy.kcp.io"`)

	// The account's token and what it may do are as they were.
	holds(account, configMap, `"written":"before"`)
	holds(account, widget, `"size":7`)
	status, body := ask(t, account, http.MethodGet, config.Host+secrets)
	require.Equal(t, http.StatusForbidden, status, "%.200s", body)
	require.Contains(t, string(body), "system:serviceaccount:default:robot")
}

// unpack extracts an archive of directories and files.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	file, err := os.Open(archive)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	plain, err := gzip.NewReader(file)
	require.NoError(t, err)
	for entries := tar.NewReader(plain); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.Clean("/"+entry.Name))
		if entry.Typeflag == tar.TypeDir {
			require.NoError(t, os.MkdirAll(path, 0o700))
			continue
		}
		out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // below the test's directory
		require.NoError(t, err)
		_, err = io.CopyN(out, entries, entry.Size)
		require.NoError(t, err)
		require.NoError(t, out.Close())
	}
}
