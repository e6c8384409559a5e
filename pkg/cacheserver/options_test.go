package cacheserver_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/cacheserver"
)

func TestFlags(t *testing.T) {
	o := cacheserver.NewOptions()
	fs := pflag.NewFlagSet("cache-server", pflag.ContinueOnError)
	for _, section := range o.Flags().FlagSets {
		fs.AddFlagSet(section)
	}
	require.NoError(t, fs.Parse([]string{
		"--bind-address=127.0.0.2", "--secure-port=1", "--data-dir=d", "--tls-cert-file=c", "--tls-private-key-file=k", "--client-ca-file=a",
		"--etcd-servers=https://e:2379", "--etcd-cafile=ca", "--etcd-certfile=ec", "--etcd-keyfile=ek", "--etcd-compaction-interval=1m", "--unsafe-no-fsync",
	}))
	require.Equal(t, "127.0.0.2", o.Serving.BindAddress)
	require.Equal(t, 1, o.Serving.SecurePort)
	require.Equal(t, "a", o.Authentication.ClientCAFile)
	require.Equal(t, []string{"https://e:2379"}, o.Etcd.Servers)
	require.NoError(t, o.Complete().Validate())
	require.Nil(t, fs.Lookup("dev-tokens"), "the cache server has no tokens")
	require.Equal(t, 8012, cacheserver.NewOptions().Serving.SecurePort)
}

func TestValidateNamesTheFlags(t *testing.T) {
	o := cacheserver.NewOptions()
	o.Serving.BindAddress = "nowhere"
	o.Serving.SecurePort = 70000
	o.Etcd.CompactionInterval = -1
	o.Etcd.CertFile = "only-one"
	err := o.Complete().Validate()
	for _, flag := range []string{"--bind-address", "--secure-port", "--tls-cert-file", "--client-ca-file", "--etcd-compaction-interval", "--etcd-keyfile"} {
		require.ErrorContains(t, err, flag)
	}
	require.Error(t, (&cacheserver.Options{}).Complete().Validate())
}

// TestHalfStarted checks that a server that cannot start says why and leaves
// nothing behind: a second one starts with the same port and data.
func TestHalfStarted(t *testing.T) {
	base := &cacheServer{pki: newPKI(t), dataDir: t.TempDir()}
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address, ok := taken.Addr().(*net.TCPAddr)
	require.True(t, ok)
	garbage := filepath.Join(t.TempDir(), "garbage")
	require.NoError(t, os.WriteFile(garbage, []byte("garbage"), 0o600))

	for name, tt := range map[string]struct {
		change func(*cacheserver.Options)
		want   string
	}{
		"port in use":        {func(o *cacheserver.Options) { o.Serving.SecurePort = address.Port }, "--secure-port"},
		"no certificate":     {func(o *cacheserver.Options) { o.Serving.TLSCertFile = "/nowhere" }, "--tls-cert-file"},
		"garbage CA":         {func(o *cacheserver.Options) { o.Authentication.ClientCAFile = garbage }, "--client-ca-file"},
		"data dir is a file": {func(o *cacheserver.Options) { o.Etcd.DataDir = garbage }, "--data-dir"},
		"garbage certificate for etcd": {func(o *cacheserver.Options) {
			o.Etcd.Servers, o.Etcd.CertFile, o.Etcd.KeyFile = []string{"https://127.0.0.1:1"}, garbage, garbage
		}, "--etcd-certfile"},
	} {
		t.Run(name, func(t *testing.T) {
			o := base.options(t)
			o.Serving.SecurePort = 0
			tt.change(o)
			_, err := cacheserver.New(t.Context(), o.Complete())
			require.ErrorContains(t, err, tt.want)
		})
	}

	require.NoError(t, taken.Close())
	o := base.options(t)
	o.Serving.SecurePort = address.Port
	s, err := cacheserver.New(t.Context(), o.Complete())
	require.NoError(t, err)
	require.Equal(t, "https://"+address.String(), s.URL())
	s.Close()
	s.Close()
}
