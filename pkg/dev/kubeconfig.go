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

// ensureKubeconfigs writes the kubeconfigs of a cluster.
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

// ensure writes the file if it is missing or lacks the required content. Contexts that users or kubectl plugins have
// added are preserved.
func (k kubeconfig) ensure(caPEM []byte) error {
	config, err := k.load()
	if err != nil {
		return fmt.Errorf("kubeconfig %s is corrupt (%w): remove it to have it recreated", k.path, err)
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

// display returns a path relative to the current directory if it is below it.
func display(path, currentDir string) string {
	if rel, err := filepath.Rel(currentDir, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}
