package dev

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/dev/pki"
)

// mustPrepare prepares a working directory and unlocks it.
func mustPrepare(t *testing.T, o CompletedOptions) *prepared {
	t.Helper()
	p, err := prepare(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, p.lock.Unlock())
	return p
}

func TestRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		fresh bool // whether nothing has run in the directory before
		spoil func(t *testing.T, o CompletedOptions, files layout)
		want  string
	}{
		"port in use": {
			spoil: func(t *testing.T, o CompletedOptions, _ layout) { listen(t, bindAddress, o.FrontProxyPort) },
			want:  "port PROXY is in use: stop the other process or pass --front-proxy-port",
		},
		"port in use on all addresses": {
			spoil: func(t *testing.T, o CompletedOptions, _ layout) { listen(t, "", o.ShardPort+1) },
			want:  "port SHARD1 is in use: stop the other process or pass --shard-port",
		},
		"work dir is a file": {
			fresh: true,
			spoil: func(t *testing.T, o CompletedOptions, _ layout) {
				t.Helper()
				require.NoError(t, os.Remove(o.WorkDir))
				require.NoError(t, os.WriteFile(o.WorkDir, nil, 0o600))
			},
			want: "cannot write to the working directory DIR (mkdir DIR: not a directory): make it writable or pass another --work-dir",
		},
		"work dir is read-only": {
			fresh: true,
			spoil: func(t *testing.T, o CompletedOptions, _ layout) {
				t.Helper()
				if os.Geteuid() == 0 {
					t.Skip("root can write to any directory")
				}
				require.NoError(t, os.Chmod(o.WorkDir, 0o500))
			},
			want: "cannot write to the working directory DIR (mkdir DIR/.kcp: permission denied): make it writable or pass another --work-dir",
		},
		"other version": {
			spoil: overwrite(versionFile, "shardplane-dev 99\n"),
			want:  `DIR has data of version "shardplane-dev 99", and this shardplane needs "shardplane-dev 1": use the shardplane that created it, move DIR/.kcp* to another directory, or pass another --work-dir`,
		},
		"foreign files": {
			fresh: true,
			spoil: func(t *testing.T, _ CompletedOptions, files layout) {
				t.Helper()
				require.NoError(t, os.Mkdir(files.shared(""), 0o700))
				require.NoError(t, os.WriteFile(files.shared("admin.kubeconfig"), nil, 0o600))
			},
			want: "DIR/.kcp/admin.kubeconfig was not created by shardplane dev: move DIR/.kcp* to another directory or pass another --work-dir",
		},
		"foreign shard directory": {
			fresh: true,
			spoil: func(t *testing.T, _ CompletedOptions, files layout) {
				require.NoError(t, os.Mkdir(files.shard(0, ""), 0o700))
			},
			want: "DIR/.kcp-0 was not created by shardplane dev: move DIR/.kcp* to another directory or pass another --work-dir",
		},
		"corrupt certificate": {
			spoil: overwrite("apiserver.crt", "garbage"),
			want: "certificate: DIR/.kcp/apiserver.crt is corrupt (data does not contain any valid RSA or ECDSA certificates): " +
				"remove apiserver.crt and apiserver.key to create them again",
		},
		"corrupt authority": {
			spoil: overwrite("client-ca.key", "garbage"),
			want: "certificate authority: DIR/.kcp/client-ca.key is corrupt (data does not contain a valid RSA or ECDSA private key): " +
				"remove client-ca.crt and client-ca.key to create them again",
		},
		"kubeconfig is not YAML": {
			spoil: overwrite("admin.kubeconfig", "{[\n"),
			want:  "kubeconfig DIR/.kcp/admin.kubeconfig is corrupt (",
		},
		"kubeconfig is empty": {
			spoil: overwrite("admin.kubeconfig", "\n"),
			want:  "kubeconfig DIR/.kcp/admin.kubeconfig is corrupt (it is empty): remove it to have it recreated",
		},
		"kubeconfig with a bad certificate": {
			spoil: overwrite("admin.kubeconfig", "users: [{name: kcp-admin, user: {client-certificate-data: Z2FyYmFnZQ==}}]"),
			want:  "kubeconfig DIR/.kcp/admin.kubeconfig is corrupt (the certificate or key of user kcp-admin is not PEM): remove it to have it recreated",
		},
		"kubeconfig with a bad authority": {
			spoil: overwrite("admin.kubeconfig", "clusters: [{name: root, cluster: {certificate-authority-data: Z2FyYmFnZQ==}}]"),
			want:  "kubeconfig DIR/.kcp/admin.kubeconfig is corrupt (the certificate authority of cluster root is not PEM): remove it to have it recreated",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			files := layout(o.WorkDir)
			if !test.fresh {
				mustPrepare(t, o)
			}
			test.spoil(t, o, files)
			out := &output{}
			err := RunCluster(t.Context(), o, out, nil)
			require.Error(t, err)
			message := strings.ReplaceAll(err.Error(), o.WorkDir, "DIR")
			message = strings.ReplaceAll(message, strconv.Itoa(o.FrontProxyPort), "PROXY")
			message = strings.ReplaceAll(message, strconv.Itoa(o.ShardPort+1), "SHARD1")
			require.True(t, strings.HasPrefix(message, test.want), message)
			require.NotContains(t, oneLine(message), "\n")
			require.Empty(t, out.String(), "no output expected, because no component was started")
			requireUnlocked(t, files)
		})
	}
}

func listen(t *testing.T, host string, port int) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
}

func overwrite(name, contents string) func(*testing.T, CompletedOptions, layout) {
	return func(t *testing.T, _ CompletedOptions, files layout) {
		t.Helper()
		require.NoError(t, os.WriteFile(files.shared(name), []byte(contents), 0o600))
	}
}

func TestRemovesTheReadyFileFirst(t *testing.T) {
	o := testOptions(t)
	mustPrepare(t, o)
	files := layout(o.WorkDir)
	require.NoError(t, os.WriteFile(files.shared(readyFile), nil, 0o600))
	require.NoError(t, os.WriteFile(files.shared("apiserver.crt"), nil, 0o600))
	_, err := prepare(t.Context(), o)
	require.Error(t, err)
	require.NoFileExists(t, files.shared(readyFile), "the ready file of a killed run must be removed")
}

func TestStaleLockFile(t *testing.T) {
	o := testOptions(t)
	mustPrepare(t, o)
	require.NoError(t, os.WriteFile(layout(o.WorkDir).shared(lockFile), []byte("1\n"), 0o600))
	mustPrepare(t, o)
}

func TestKubeconfigs(t *testing.T) {
	o := testOptions(t)
	o.FrontProxyPort, o.ShardPort, o.CacheServerPort = 6443, 6444, 8012
	files := layout(o.WorkDir)
	for _, dir := range files.dirs(o.Shards) {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	certs, err := ensureCertificates(files, o.Shards, time.Now)
	require.NoError(t, err)
	require.NoError(t, ensureKubeconfigs(o, certs))
	require.Contains(t, string(certs.clientCA.KeyPEM), "RSA PRIVATE KEY", "kcp's test helpers sign with this key")

	for path, want := range map[string]struct {
		user     string
		current  string
		contexts map[string]string
	}{
		".kcp/admin.kubeconfig": {"kcp-admin", "root", map[string]string{
			"root": "https://127.0.0.1:6443/clusters/root", "base": "https://127.0.0.1:6443",
		}},
		".kcp-1/admin.kubeconfig": {"shard-admin", "root", map[string]string{
			"root": "https://127.0.0.1:6445/clusters/root", "base": "https://127.0.0.1:6445",
			"shard-base": "https://127.0.0.1:6445", "system:admin": "https://127.0.0.1:6445/clusters/system:admin",
		}},
		".kcp-cache/cache.kubeconfig":  {"shard-admin", "cache", map[string]string{"cache": "https://127.0.0.1:8012"}},
		".kcp-1/cache.kubeconfig":      {"shard-client-shard-1", "cache", map[string]string{"cache": "https://127.0.0.1:8012"}},
		".kcp-1/root-shard.kubeconfig": {"shard-client-shard-1", "shard-base", map[string]string{"shard-base": "https://127.0.0.1:6444"}},
		".kcp/front-proxy.kubeconfig":  {"front-proxy-client", "shard-base", map[string]string{"shard-base": "https://127.0.0.1:6444"}},
	} {
		config, err := clientcmd.LoadFromFile(filepath.Join(o.WorkDir, path))
		require.NoError(t, err, path)
		require.Equal(t, want.current, config.CurrentContext, path)
		require.Len(t, config.Contexts, len(want.contexts), path)
		for name, server := range want.contexts {
			rest, err := clientcmd.NewNonInteractiveClientConfig(*config, name, nil, nil).ClientConfig()
			require.NoError(t, err, path)
			require.Equal(t, server, rest.Host, path)
			require.Equal(t, certs.servingCA.CertPEM, rest.CAData, path)
			require.NotEmpty(t, rest.CertData, path)
			require.NotEmpty(t, rest.KeyData, path)
			require.Equal(t, want.user, config.Contexts[name].AuthInfo, path)
		}
	}
}

func TestKubeconfigRetainsUserEntries(t *testing.T) {
	o := testOptions(t)
	p := mustPrepare(t, o)
	path := layout(o.WorkDir).shared("admin.kubeconfig")
	config, err := clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	config.Contexts["mine"] = &clientcmdapi.Context{Cluster: "base", AuthInfo: "kcp-admin", Namespace: "ns"}
	config.CurrentContext = "mine"
	config.Clusters["root"].Server = "https://elsewhere"
	require.NoError(t, clientcmd.WriteToFile(*config, path))

	mustPrepare(t, o)
	config, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", config.CurrentContext)
	require.Equal(t, "ns", config.Contexts["mine"].Namespace)
	require.Equal(t, baseURL(o.FrontProxyPort)+"/clusters/root", config.Clusters["root"].Server)
	require.Equal(t, p.certs.kcpAdmin.CertPEM, config.AuthInfos["kcp-admin"].ClientCertificateData)
}

func TestRenewsCertificatesInKubeconfigs(t *testing.T) {
	o := testOptions(t)
	files := layout(o.WorkDir)
	require.NoError(t, os.Mkdir(files.shared(""), 0o700))
	require.NoError(t, os.WriteFile(files.shared(versionFile), []byte(layoutVersion), 0o600))
	longAgo := func() time.Time { return time.Now().Add(-360 * 24 * time.Hour) }
	old, err := ensureCertificates(files, o.Shards, longAgo)
	require.NoError(t, err)

	p := mustPrepare(t, o)
	require.Len(t, p.notes, 7)
	require.True(t, strings.HasPrefix(p.notes[0], "certificate apiserver renewed: it would have expired on "), p.notes[0])
	require.Equal(t, old.clientCA.CertPEM, p.certs.clientCA.CertPEM)
	config, err := clientcmd.LoadFromFile(files.shared("admin.kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, p.certs.kcpAdmin.CertPEM, config.AuthInfos["kcp-admin"].ClientCertificateData)
	require.NotEqual(t, old.kcpAdmin.CertPEM, p.certs.kcpAdmin.CertPEM)
	require.IsType(t, &pki.Pair{}, p.certs.serving)
}

// commands returns the commands of a cluster.
func commands(t *testing.T, o CompletedOptions) []Command {
	t.Helper()
	commands, release, err := Prepare(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, release()) })
	return commands
}

// TestArgs verifies that additional flags are passed after the components' own flags.
func TestArgs(t *testing.T) {
	o := testOptions(t, func(o *Options) {
		o.ShardArgs = []string{"--fairness-seats=9", "--etcd-compaction-interval=1m"}
		o.FrontProxyArgs = []string{"--mapping-file=mappings.yaml"}
	})
	for _, command := range commands(t, o) {
		for kind, args := range map[string][]string{"shard": o.ShardArgs, "front-proxy": o.FrontProxyArgs} {
			if command.Args[0] == kind {
				require.Equal(t, args, command.Args[len(command.Args)-len(args):], command.Name)
			} else {
				require.NotContains(t, command.Args, args[0], command.Name)
			}
		}
	}
}

// TestEncryption verifies that all components with storage get the absolute path of the encryption configuration.
func TestEncryption(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.EncryptionConfigFile = "encryption.yaml" })
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, command := range commands(t, o) {
		want := command.Args[0] != "front-proxy"
		require.Equal(t, want, slices.Contains(command.Args, "--encryption-provider-config="+filepath.Join(here, "encryption.yaml")), command.Name)
		require.Equal(t, want, slices.ContainsFunc(command.Args, func(arg string) bool { return strings.HasPrefix(arg, "--encryption-provider-config=") }), command.Name)
	}
}

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no shards":                          {func(o *Options) { o.Shards = 0 }, "--shards is 0: it must be 1 to 16"},
		"too many shards":                    {func(o *Options) { o.Shards = 17 }, "--shards is 17: it must be 1 to 16"},
		"port conflict":                      {func(o *Options) { o.CacheServerPort = 6445 }, "port 6445 would be used by the shard shard-1 and the cache server: pass another --cache-server-port"},
		"front-proxy on port of a shard":     {func(o *Options) { o.FrontProxyPort = 6444 }, "port 6444 would be used by the front-proxy and the shard root: pass another --shard-port"},
		"port 0":                             {func(o *Options) { o.FrontProxyPort = 0 }, "port 0 for the front-proxy is not a port: pass --front-proxy-port so that it is 1 to 65535"},
		"port too large":                     {func(o *Options) { o.ShardPort = 65535 }, "port 65536 for the shard shard-1 is not a port: pass --shard-port so that it is 1 to 65535"},
		"verbosity":                          {func(o *Options) { o.Verbosity = 11 }, "-v is 11: it must be 0 to 10"},
		"shard argument is not a flag":       {func(o *Options) { o.ShardArgs = []string{"5m"} }, `--shard-arg is "5m": it must be a flag with its value, such as --shard-arg=--etcd-compaction-interval=1m`},
		"front-proxy argument is not a flag": {func(o *Options) { o.FrontProxyArgs = []string{"x"} }, `--front-proxy-arg is "x": it must be a flag with its value, such as --front-proxy-arg=--mapping-file=mappings.yaml`},
		"zero timeout":                       {func(o *Options) { o.StartTimeout = 0 }, "--start-timeout is 0s: it must be positive"},
	} {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			test.change(o)
			completed, err := o.Complete()
			require.NoError(t, err)
			require.EqualError(t, completed.Validate(), test.want)
		})
	}
	t.Run("empty work dir", func(t *testing.T) {
		o := NewOptions()
		o.WorkDir = ""
		_, err := o.Complete()
		require.EqualError(t, err, "--work-dir must not be empty: pass a directory, or omit it to use the current one")
	})
}
