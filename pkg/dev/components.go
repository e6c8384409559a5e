package dev

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

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

func supervised(components []component, program string, logs []*componentLog, client *http.Client) []supervise.Component {
	result := make([]supervise.Component, len(components))
	for i, c := range components {
		result[i] = supervise.Component{Name: c.name, Path: program, Args: c.args, Output: logs[i], Ready: readyCheck(client, c.url), Stage: c.stage}
	}
	return result
}

// Command starts a component with the shardplane program.
type Command struct {
	// Name is the name of the component, e.g. shard-1.
	Name string
	// URL is the address of the component, without a path.
	URL string
	// Args are the arguments, beginning with the subcommand.
	Args []string
}

// Deployment is a working directory that is ready to start the components of a cluster one by one, e.g. in
// tests that stop, kill and restart them. Release unlocks the directory.
type Deployment struct {
	// Commands start the components, in the order of RunCluster.
	Commands []Command

	lock *flock.Flock
}

// Prepare creates or checks certificates, kubeconfigs and data directories, like RunCluster, but starts nothing.
func Prepare(ctx context.Context, o CompletedOptions) (*Deployment, error) {
	p, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	d := &Deployment{lock: p.lock}
	for _, c := range plan(o, p.certs) {
		d.Commands = append(d.Commands, Command{Name: c.name, URL: c.url, Args: c.args})
	}
	return d, nil
}

// Release unlocks the working directory.
func (d *Deployment) Release() error { return d.lock.Unlock() }

const (
	readyTimeout  = 5 * time.Second
	maxReadyBytes = 64 << 10
)

func newReadyClient(certs *certificates) (*http.Client, error) {
	cert, err := tls.X509KeyPair(certs.shardAdmin.CertPEM, certs.shardAdmin.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("load the certificate of shard-admin: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certs.servingCA.CertPEM)
	return &http.Client{
		Timeout: readyTimeout,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
			// A component is polled only until it is ready.
			IdleConnTimeout: time.Second,
		},
	}, nil
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
