package dev

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	sharedDir   = ".kcp"
	cacheDir    = ".kcp-cache"
	readyFile   = "ready-to-test"
	versionFile = "version"
	lockFile    = "dev.lock"
)

// layout contains the paths of the files in a working directory.
//
//	.kcp/          authorities, certificates, keys, admin.kubeconfig, front-proxy.log,
//	               version, dev.lock, ready-to-test
//	.kcp-<n>/      admin.kubeconfig, root-shard.kubeconfig, cache.kubeconfig, data/ and
//	               <shard name>.log of shard n
//	.kcp-cache/    cache.kubeconfig, data/ and cache-server.log
type layout string

func (l layout) shared(name string) string { return filepath.Join(string(l), sharedDir, name) }

func (l layout) cache(name string) string { return filepath.Join(string(l), cacheDir, name) }

func (l layout) shard(n int, name string) string {
	return filepath.Join(string(l), fmt.Sprintf("%s-%d", sharedDir, n), name)
}

func (l layout) dirs(shards int) []string {
	dirs := []string{l.shared(""), l.cache("")}
	for n := range shards {
		dirs = append(dirs, l.shard(n, ""))
	}
	return dirs
}

// errLocked is returned if another process holds the lock.
var errLocked = errors.New("in use by another shardplane dev")

// acquireLock takes the lock at path, or returns an error that wraps errLocked. The kernel releases the lock when
// the process ends. The file remains, because removing it could remove the lock of another process.
func acquireLock(path string) (*flock.Flock, error) {
	lock := flock.New(path)
	held, err := lock.TryLock()
	if err != nil {
		return nil, err
	}
	if !held {
		holder := ""
		if pid, err := os.ReadFile(path); err == nil && len(pid) > 0 {
			holder = fmt.Sprintf(" (pid %s)", bytes.TrimSpace(pid))
		}
		return nil, fmt.Errorf("%w%s", errLocked, holder)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	return lock, nil
}

// certificates are the authorities and certificates of a cluster, in files below .kcp.
type certificates struct {
	clientCA, servingCA, requestHeaderCA *pki.Pair

	serving      *pki.Pair // serving certificate of all components
	kcpAdmin     *pki.Pair // administrator, through the front-proxy
	shardAdmin   *pki.Pair // administrator, directly at a shard or the cache server
	proxyIndex   *pki.Pair // front-proxy at shards, for its index
	proxyForward *pki.Pair // front-proxy at shards, for forwarded requests

	// shardClients are the client certificates of shards for other shards and the cache server.
	shardClients []*pki.Pair

	// serviceAccountKey is the file of the key that signs service account tokens on all shards.
	serviceAccountKey string

	store *pki.Store
}

func ensureCertificates(files layout, shards int, now func() time.Time) (*certificates, error) {
	store := pki.NewStore(files.shared(""), now)
	c := &certificates{shardClients: make([]*pki.Pair, shards), store: store}
	var failed error
	keep := func(pair *pki.Pair, err error) *pki.Pair {
		failed = cmp.Or(failed, err)
		return pair
	}
	// kcp's test helpers use the first one to sign client certificates with SHA256-RSA.
	c.clientCA = keep(store.RSAAuthority("client-ca"))
	c.servingCA = keep(store.Authority("serving-ca"))
	c.requestHeaderCA = keep(store.Authority("requestheader-ca"))
	if failed != nil {
		return nil, fmt.Errorf("certificate authority: %w", failed)
	}
	c.serving = keep(store.Certificate("apiserver", c.servingCA, pki.Spec{
		CommonName: "localhost", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}))
	c.kcpAdmin = keep(store.Certificate("kcp-admin", c.clientCA, pki.Client("kcp-admin", request.GroupAdmin)))
	c.shardAdmin = keep(store.Certificate("shard-admin", c.clientCA, pki.Client("shard-admin", user.SystemPrivilegedGroup)))
	c.proxyIndex = keep(store.Certificate("front-proxy-client", c.clientCA, pki.Client("front-proxy-client", user.SystemPrivilegedGroup)))
	c.proxyForward = keep(store.Certificate("front-proxy-requestheader", c.requestHeaderCA, pki.Client("front-proxy")))
	for n := range shards {
		spec := pki.Client(request.ShardUserPrefix+shardName(n), request.GroupShards)
		c.shardClients[n] = keep(store.Certificate(shardClientName(n), c.clientCA, spec))
	}
	if failed != nil {
		return nil, fmt.Errorf("certificate: %w", failed)
	}
	var err error
	if c.serviceAccountKey, err = store.Key("service-account"); err != nil {
		return nil, fmt.Errorf("key of service accounts: %w", err)
	}
	return c, nil
}

// shardClientName is the name of a shard's certificate, and of its user in kubeconfigs.
func shardClientName(n int) string { return "shard-client-" + shardName(n) }

// kubeconfig is the required content of a kubeconfig file.
type kubeconfig struct {
	path string
	// contexts are the contexts with their servers. The first is the current context.
	contexts []kubeContext
	user     string
	pair     *pki.Pair
}

type kubeContext struct {
	name, server string
}

func ensureKubeconfigs(o CompletedOptions, certs *certificates) error {
	for _, k := range kubeconfigs(o, certs) {
		if err := k.ensure(certs.servingCA.CertPEM); err != nil {
			return err
		}
	}
	return nil
}
func kubeconfigs(o CompletedOptions, certs *certificates) []kubeconfig {
	files := layout(o.WorkDir)
	proxy, root, cache := baseURL(o.FrontProxyPort), baseURL(o.ShardPort), baseURL(o.CacheServerPort)
	configs := []kubeconfig{
		{files.shared("admin.kubeconfig"), []kubeContext{{"root", proxy + request.ClusterPath("root")}, {"base", proxy}}, "kcp-admin", certs.kcpAdmin},
		{files.shared("front-proxy.kubeconfig"), []kubeContext{{"shard-base", root}}, "front-proxy-client", certs.proxyIndex},
		{files.cache("cache.kubeconfig"), []kubeContext{{"cache", cache}}, "shard-admin", certs.shardAdmin},
	}
	for n := range o.Shards {
		shard := baseURL(o.ShardPort + n)
		configs = append(configs, kubeconfig{files.shard(n, "admin.kubeconfig"), []kubeContext{
			{"root", shard + request.ClusterPath("root")},
			{"base", shard},
			{"shard-base", shard},
			{tenancy.AdminCluster.String(), shard + request.ClusterPath(tenancy.AdminCluster.String())},
		}, "shard-admin", certs.shardAdmin},
			kubeconfig{files.shard(n, "cache.kubeconfig"), []kubeContext{{"cache", cache}}, shardClientName(n), certs.shardClients[n]})
		if n > 0 {
			configs = append(configs,
				kubeconfig{files.shard(n, "root-shard.kubeconfig"), []kubeContext{{"shard-base", root}}, shardClientName(n), certs.shardClients[n]})
		}
	}
	return configs
}

func baseURL(port int) string { return fmt.Sprintf("https://%s:%d", bindAddress, port) }

// ensure writes the file unless it has the required content. Contexts that users have added are preserved.
func (k kubeconfig) ensure(caPEM []byte) error {
	config, err := k.load()
	if err != nil {
		return fmt.Errorf("kubeconfig %s is corrupt (%w): remove it to have it recreated", k.path, err)
	}
	before := config.DeepCopy()
	user := cmp.Or(config.AuthInfos[k.user], clientcmdapi.NewAuthInfo())
	config.AuthInfos[k.user] = user
	user.ClientCertificateData, user.ClientKeyData = k.pair.CertPEM, k.pair.KeyPEM
	for _, c := range k.contexts {
		cluster := cmp.Or(config.Clusters[c.name], clientcmdapi.NewCluster())
		cluster.Server, cluster.CertificateAuthorityData = c.server, caPEM
		context := cmp.Or(config.Contexts[c.name], clientcmdapi.NewContext())
		context.Cluster, context.AuthInfo = c.name, k.user
		config.Clusters[c.name], config.Contexts[c.name] = cluster, context
	}
	if config.Contexts[config.CurrentContext] == nil {
		config.CurrentContext = k.contexts[0].name
	}
	if reflect.DeepEqual(before, config) {
		return nil
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %s: %w", k.path, err)
	}
	return pki.WriteFile(k.path, data, 0o600)
}

// load reads the file, and returns an empty configuration if it does not exist.
func (k kubeconfig) load() (*clientcmdapi.Config, error) {
	data, err := os.ReadFile(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return clientcmdapi.NewConfig(), nil
	case err != nil:
		return nil, err
	case len(strings.TrimSpace(string(data))) == 0:
		return nil, errors.New("it is empty")
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	for name, user := range config.AuthInfos {
		if name == k.user && !isPEM(user.ClientCertificateData, user.ClientKeyData) {
			return nil, fmt.Errorf("the certificate or key of user %s is not PEM", name)
		}
	}
	for name, cluster := range config.Clusters {
		if !isPEM(cluster.CertificateAuthorityData) {
			return nil, fmt.Errorf("the certificate authority of cluster %s is not PEM", name)
		}
	}
	return config, nil
}

// isPEM reports whether all non-empty data are PEM.
func isPEM(data ...[]byte) bool {
	for _, d := range data {
		if block, _ := pem.Decode(d); len(d) > 0 && block == nil {
			return false
		}
	}
	return true
}
