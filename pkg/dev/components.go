package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

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

// Command starts a component with the shardplane program.
type Command struct {
	// Name is the name of the component, e.g. shard-1.
	Name string
	// URL is the address of the component, without a path.
	URL string
	// Args are the arguments, beginning with the subcommand.
	Args []string

	logFile string
	stage   int
}

// plan returns the components in the order of their start. They start concurrently; each waits for its dependencies.
func plan(o CompletedOptions, certs *certificates) []Command {
	files := layout(o.WorkDir)
	components := make([]Command, 0, o.Shards+2)
	for n := range o.Shards {
		components = append(components, shardComponent(o, certs, n))
	}
	cache := Command{
		Name: "cache-server", URL: baseURL(o.CacheServerPort), logFile: files.cache("cache-server.log"), stage: stageCache,
		Args: append([]string{"cache-server", "--data-dir=" + files.cache("data"), "--encryption-provider-config=" + o.EncryptionConfigFile},
			servingFlags(o, certs, o.CacheServerPort)...),
	}
	proxy := Command{
		Name: "front-proxy", URL: baseURL(o.FrontProxyPort), logFile: files.shared("front-proxy.log"), stage: stageProxy,
		Args: append([]string{
			"front-proxy",
			"--root-kubeconfig=" + files.shared("front-proxy.kubeconfig"),
			"--shard-client-cert-file=" + certs.proxyIndex.CertFile,
			"--shard-client-key-file=" + certs.proxyIndex.KeyFile,
			"--shard-ca-file=" + certs.servingCA.CertFile,
			"--proxy-client-cert-file=" + certs.proxyForward.CertFile,
			"--proxy-client-key-file=" + certs.proxyForward.KeyFile,
			"--workspace-issuer-allowed-cidrs=" + loopbackCIDRs,
			"--service-account-key-file=" + certs.serviceAccountKey,
			"--dev-tokens=" + strconv.FormatBool(o.DevTokens),
		}, servingFlags(o, certs, o.FrontProxyPort)...),
	}
	proxy.Args = append(proxy.Args, o.FrontProxyArgs...)
	return append(components, cache, proxy)
}

func shardComponent(o CompletedOptions, certs *certificates, n int) Command {
	files := layout(o.WorkDir)
	name, port := shardName(n), o.ShardPort+n
	c := Command{Name: name, URL: baseURL(port), logFile: files.shard(n, name+".log"), stage: stageShards}
	c.Args = append([]string{
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
		"--dev-tokens=" + strconv.FormatBool(o.DevTokens),
		"--encryption-provider-config=" + o.EncryptionConfigFile,
	}, servingFlags(o, certs, port)...)
	if n == 0 {
		c.stage = stageRoot
	} else {
		c.Args = append(c.Args, "--root-kubeconfig="+files.shard(n, "root-shard.kubeconfig"))
	}
	c.Args = append(c.Args, o.ShardArgs...)
	return c
}

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

func supervised(components []Command, program string, logs []*componentLog, client *http.Client) []supervise.Component {
	result := make([]supervise.Component, len(components))
	for i, c := range components {
		result[i] = supervise.Component{Name: c.Name, Path: program, Args: c.Args, Output: logs[i], Ready: readyCheck(client, c.URL), Stage: c.stage}
	}
	return result
}

// Prepare creates or checks certificates, kubeconfigs and data directories, like RunCluster, but starts nothing. It
// returns the commands of the components, e.g. for tests that stop and restart them. release unlocks the directory.
func Prepare(ctx context.Context, o CompletedOptions) (commands []Command, release func() error, err error) {
	p, err := prepare(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	return plan(o, p.certs), p.lock.Unlock, nil
}

const (
	readyTimeout  = 5 * time.Second
	maxReadyBytes = 64 << 10
)

func newReadyClient(certs *certificates) (*http.Client, error) {
	return rest.HTTPClientFor(&rest.Config{Timeout: readyTimeout, TLSClientConfig: rest.TLSClientConfig{
		CAData: certs.servingCA.CertPEM, CertData: certs.shardAdmin.CertPEM, KeyData: certs.shardAdmin.KeyPEM,
	}})
}

func readyCheck(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz?verbose", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return errors.New("not listening yet")
		}
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(response.Body, maxReadyBytes))
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return unready(response.Status, body)
		}
		return nil
	}
}

// unready returns an error with the failed checks in a response, which have lines like "[-]name failed: reason".
func unready(status string, body []byte) error {
	var failed []string
	for line := range bytes.Lines(body) {
		if check, ok := strings.CutPrefix(string(line), "[-]"); ok {
			name, _, _ := strings.Cut(check, " failed")
			failed = append(failed, strings.TrimSpace(name))
		}
	}
	if len(failed) == 0 {
		return fmt.Errorf("/readyz returned %s", status)
	}
	return fmt.Errorf("waiting for %s", strings.Join(failed, ", "))
}
