package dev

import (
	"strconv"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/request"
)

// The stages of the shutdown, from last to first. Components depend on those in lower stages.
const (
	stageCache = iota
	stageRoot
	stageShards
	stageProxy
)

// loopbackCIDRs are allowed for webhooks, because developers run them locally.
const loopbackCIDRs = "127.0.0.0/8,::1/128"

// component is one process of the cluster.
type component struct {
	name    string
	url     string
	logFile string
	stage   int
	args    []string
}

// plan returns the components in the order of their start. They start concurrently; each waits for its dependencies.
func plan(o CompletedOptions, certs *certificates) []component {
	files := layout(o.WorkDir)
	components := make([]component, 0, o.Shards+2)
	for n := range o.Shards {
		components = append(components, shardComponent(o, certs, n))
	}
	cache := component{
		name: "cache-server", url: baseURL(o.CacheServerPort), logFile: files.cache("cache-server.log"), stage: stageCache,
		args: append([]string{"cache-server", "--data-dir=" + files.cache("data")},
			servingFlags(o, certs, o.CacheServerPort)...),
	}
	cache.args = append(cache.args, encryptionFlags(o)...)
	proxy := component{
		name: "front-proxy", url: baseURL(o.FrontProxyPort), logFile: files.shared("front-proxy.log"), stage: stageProxy,
		args: append([]string{
			"front-proxy",
			"--root-kubeconfig=" + files.shared("front-proxy.kubeconfig"),
			"--shard-client-cert-file=" + certs.proxyIndex.CertFile,
			"--shard-client-key-file=" + certs.proxyIndex.KeyFile,
			"--shard-ca-file=" + certs.servingCA.CertFile,
			"--proxy-client-cert-file=" + certs.proxyForward.CertFile,
			"--proxy-client-key-file=" + certs.proxyForward.KeyFile,
			"--workspace-issuer-allowed-cidrs=" + loopbackCIDRs,
			"--service-account-key-file=" + certs.serviceAccountKey,
		}, servingFlags(o, certs, o.FrontProxyPort)...),
	}
	proxy.args = append(append(proxy.args, tokenFlags(o)...), o.FrontProxyArgs...)
	return append(components, cache, proxy)
}

func shardComponent(o CompletedOptions, certs *certificates, n int) component {
	files := layout(o.WorkDir)
	name, port := shardName(n), o.ShardPort+n
	c := component{name: name, url: baseURL(port), logFile: files.shard(n, name+".log"), stage: stageShards}
	c.args = append([]string{
		"shard",
		"--name=" + name,
		"--data-dir=" + files.shard(n, "data"),
		"--external-url=" + baseURL(o.FrontProxyPort),
		"--virtual-workspace-url=" + baseURL(o.FrontProxyPort) + request.Shards.Prefix + name,
		"--requestheader-client-ca-file=" + certs.requestHeaderCA.CertFile,
		"--shard-client-cert-file=" + certs.shardClients[n].CertFile,
		"--shard-client-key-file=" + certs.shardClients[n].KeyFile,
		"--shard-ca-file=" + certs.servingCA.CertFile,
		"--service-account-signing-key-file=" + certs.serviceAccountKey,
		"--root-ca-file=" + certs.servingCA.CertFile,
		"--cache-kubeconfig=" + files.shard(n, "cache.kubeconfig"),
		"--webhook-allowed-cidrs=" + loopbackCIDRs,
		"--workspace-issuer-allowed-cidrs=" + loopbackCIDRs,
	}, servingFlags(o, certs, port)...)
	c.args = append(append(c.args, tokenFlags(o)...), encryptionFlags(o)...)
	if n == 0 {
		c.stage = stageRoot
	} else {
		c.args = append(c.args, "--root-kubeconfig="+files.shard(n, "root-shard.kubeconfig"))
	}
	c.args = append(c.args, o.ShardArgs...)
	return c
}

// servingFlags are the flags of all components.
func servingFlags(o CompletedOptions, certs *certificates, port int) []string {
	return []string{
		"--bind-address=" + bindAddress,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + certs.serving.CertFile,
		"--tls-private-key-file=" + certs.serving.KeyFile,
		"--client-ca-file=" + certs.clientCA.CertFile,
		"-v=" + strconv.Itoa(o.Verbosity),
	}
}

func tokenFlags(o CompletedOptions) []string {
	if o.DevTokens {
		return []string{"--dev-tokens"}
	}
	return nil
}

// encryptionFlags are the flags of components with storage. The cache server stores replicas of encrypted objects.
func encryptionFlags(o CompletedOptions) []string {
	if o.EncryptionConfigFile != "" {
		return []string{"--encryption-provider-config=" + o.EncryptionConfigFile}
	}
	return nil
}

// supervised converts the components for the supervisor.
func supervised(components []component, program string, logs []*componentLog, ready *readiness) []supervise.Component {
	result := make([]supervise.Component, len(components))
	for i, c := range components {
		result[i] = supervise.Component{Name: c.name, Path: program, Args: c.args, Output: logs[i], Ready: ready.of(c.url), Stage: c.stage}
	}
	return result
}
