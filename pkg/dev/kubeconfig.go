package dev

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// kubeconfig is what a kubeconfig file must hold.
type kubeconfig struct {
	path string
	// contexts are the names of the contexts with their servers; the first is
	// the current one.
	contexts []kubeContext
	user     string
	pair     *pki.Pair
}

type kubeContext struct {
	name, server string
}

// ensureKubeconfigs writes the kubeconfigs of a cluster.
func ensureKubeconfigs(o CompletedOptions, certs *certificates) error {
	for _, k := range kubeconfigs(o, certs) {
		if err := k.ensure(certs.servingCA.CertPEM); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfigs returns the kubeconfigs of a cluster.
func kubeconfigs(o CompletedOptions, certs *certificates) []kubeconfig {
	files := layout(o.WorkDir)
	proxy := baseURL(o.FrontProxyPort)
	configs := []kubeconfig{
		{
			path:     files.shared("admin.kubeconfig"),
			contexts: []kubeContext{{"root", proxy + request.ClusterPath("root")}, {"base", proxy}},
			user:     "kcp-admin", pair: certs.kcpAdmin,
		},
		{
			path:     files.shared("front-proxy.kubeconfig"),
			contexts: []kubeContext{{"shard-base", baseURL(o.ShardPort)}},
			user:     "front-proxy-client", pair: certs.proxyIndex,
		},
		{
			path:     files.cache("cache.kubeconfig"),
			contexts: []kubeContext{{"cache", baseURL(o.CacheServerPort)}},
			user:     "shard-admin", pair: certs.shardAdmin,
		},
	}
	for n := range o.Shards {
		shard := baseURL(o.ShardPort + n)
		configs = append(configs, kubeconfig{
			path: files.shard(n, "admin.kubeconfig"),
			contexts: []kubeContext{
				{"root", shard + request.ClusterPath("root")},
				{"base", shard},
				{"shard-base", shard},
				{tenancy.AdminCluster.String(), shard + request.ClusterPath(tenancy.AdminCluster.String())},
			},
			user: "shard-admin", pair: certs.shardAdmin,
		}, kubeconfig{
			path:     files.shard(n, "cache.kubeconfig"),
			contexts: []kubeContext{{"cache", baseURL(o.CacheServerPort)}},
			user:     shardClientName(n), pair: certs.shardClients[n],
		})
		if n > 0 {
			configs = append(configs, kubeconfig{
				path:     files.shard(n, "root-shard.kubeconfig"),
				contexts: []kubeContext{{"shard-base", baseURL(o.ShardPort)}},
				user:     shardClientName(n), pair: certs.shardClients[n],
			})
		}
	}
	return configs
}

func baseURL(port int) string { return fmt.Sprintf("https://%s:%d", bindAddress, port) }

// ensure writes the file where it is missing or does not hold what it must.
// Contexts that people, or kubectl plugins, have added stay.
func (k kubeconfig) ensure(caPEM []byte) error {
	config, err := k.load()
	if err != nil {
		return fmt.Errorf("kubeconfig %s is corrupt (%w): remove it to have it written again", k.path, err)
	}
	before := config.DeepCopy()
	if config.AuthInfos[k.user] == nil {
		config.AuthInfos[k.user] = clientcmdapi.NewAuthInfo()
	}
	user := config.AuthInfos[k.user]
	user.ClientCertificateData, user.ClientKeyData = k.pair.CertPEM, k.pair.KeyPEM
	for _, c := range k.contexts {
		if config.Clusters[c.name] == nil {
			config.Clusters[c.name] = clientcmdapi.NewCluster()
		}
		cluster := config.Clusters[c.name]
		cluster.Server, cluster.CertificateAuthorityData = c.server, caPEM
		if config.Contexts[c.name] == nil {
			config.Contexts[c.name] = clientcmdapi.NewContext()
		}
		context := config.Contexts[c.name]
		context.Cluster, context.AuthInfo = c.name, k.user
	}
	if config.Contexts[config.CurrentContext] == nil {
		config.CurrentContext = k.contexts[0].name
	}
	if reflect.DeepEqual(before, config) {
		return nil
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode kubeconfig %s: %w", k.path, err)
	}
	return pki.WriteFile(k.path, data, 0o600)
}

// load reads the file, and returns an empty configuration where there is none.
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

// isPEM reports whether each of the data is PEM; none at all passes.
func isPEM(data ...[]byte) bool {
	for _, d := range data {
		if block, _ := pem.Decode(d); len(d) > 0 && block == nil {
			return false
		}
	}
	return true
}

// display shortens a path below the current directory for the terminal.
func display(path, currentDir string) string {
	if rel, err := filepath.Rel(currentDir, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}
