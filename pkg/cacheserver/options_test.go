package cacheserver_test

import (
	"fmt"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/test/lifecycletest"
)

func TestFlags(t *testing.T) {
	t.Parallel()
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
	require.Nil(t, fs.Lookup("dev-tokens"), "the cache server must not have this flag")
	require.Equal(t, 8012, cacheserver.NewOptions().Serving.SecurePort)
}

func TestValidateNamesTheFlags(t *testing.T) {
	t.Parallel()
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

	o = cacheserver.NewOptions()
	o.Name, o.RelayConfig = "global", writeFile(t, "relays.yaml", fmt.Sprintf("relays:\n- {from: {name: global, kubeconfig: %s}}\n", writeKubeconfig(t, newPKI(t), "https://127.0.0.1:1")))
	require.ErrorContains(t, o.Complete().Validate(), "--relay-config: "+o.RelayConfig+": relays[0] (\"global\"): from.name: must not be the name of this cache server")
	require.ErrorContains(t, o.Complete().Validate(), "--relay-config needs --feature-gates=CacheRelays=true")
	o.Serving.FeatureGates["CacheRelays"] = "true"
	require.NotContains(t, o.Complete().Validate().Error(), "--feature-gates")
	o.Name = "a/b"
	require.ErrorContains(t, o.Complete().Validate(), "--cache-name \"a/b\" is not a valid name")
}

// TestFailedStart checks that a server that fails to start reports the reason and releases its port and data.
func TestFailedStart(t *testing.T) {
	base := &cacheServer{pki: newPKI(t), dataDir: t.TempDir()}
	options := func(port int) *cacheserver.Options {
		o := base.options(t)
		o.Serving.SecurePort = port
		return o
	}
	start := func(o *cacheserver.Options) (lifecycletest.Server, error) {
		return cacheserver.NewCacheServer(t.Context(), o.Complete())
	}
	lifecycletest.HalfStarted(t, options, start, map[string]lifecycletest.Mistake[cacheserver.Options]{
		"no certificate":     {Make: func(o *cacheserver.Options, _ string) { o.Serving.TLSCertFile = "/nowhere" }, Want: "--tls-cert-file"},
		"garbage CA":         {Make: func(o *cacheserver.Options, garbage string) { o.Authentication.ClientCAFile = garbage }, Want: "--client-ca-file"},
		"data dir is a file": {Make: func(o *cacheserver.Options, garbage string) { o.Etcd.DataDir = garbage }, Want: "--data-dir"},
		"garbage encryption": {Make: func(o *cacheserver.Options, garbage string) { o.Encryption.ConfigFile = garbage }, Want: "--encryption-provider-config"},
		"garbage certificate for etcd": {Make: func(o *cacheserver.Options, garbage string) {
			o.Etcd.Servers, o.Etcd.CertFile, o.Etcd.KeyFile = []string{"https://127.0.0.1:1"}, garbage, garbage
		}, Want: "--etcd-certfile"},
	})
}
