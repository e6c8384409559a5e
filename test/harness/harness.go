// Package harness starts clusters for tests: shards, front-proxy and cache server with TLS and etcd, inside of the test process or
// as processes of the built binary, with the flags of `shardplane dev`. Tests do not depend on the mode.
//
//	Start(t, Options) ─► Cluster ─► Shard(n), Proxy(), Cache()     client configurations
//	                         └────► Component("shard-1").Stop(), Kill(), Start()
package harness

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/dev"
	"github.com/shardplane/shardplane/test/ports"
)

// StartTimeout limits the start of a component. It is generous because test machines are busy.
const StartTimeout = time.Minute

// Mode selects how components run.
type Mode int

const (
	// InProcess runs components as goroutines.
	InProcess Mode = iota
	// Processes runs components as processes of the built binary, which can be killed.
	Processes
)

// Options configure a cluster. The zero value is one shard, a front-proxy and a cache server in the test process.
type Options struct {
	// Mode selects how components run.
	Mode Mode
	// Binary is used in mode Processes instead of the built binary.
	Binary string
	// Shards is the number of shards. 0 means one.
	Shards int
	// Replicas is the number of processes of each shard. 0 and 1 mean an embedded etcd. Otherwise they share an etcd process,
	// and the package's TestMain must call Main.
	Replicas int
	// DevTokens accepts the tokens of the development cluster.
	DevTokens bool
	// EncryptionConfig is an EncryptionConfiguration file for shards and cache server. They do not encrypt if it is "".
	EncryptionConfig string
	// Fsync makes etcd's writes durable, which is slower.
	Fsync bool
	// ExtraArgs are added to the arguments of components by subcommand (shard, front-proxy or cache-server) or name, e.g. shard-1.
	ExtraArgs map[string][]string
	// SecondProxy contains additional arguments of a second front-proxy, front-proxy-2, which does not use ExtraArgs. It does not
	// exist if they are empty.
	SecondProxy []string
	// SecondCache adds a cache server, cache-server-2, with a separate database. Shards use it only if ExtraArgs specify it.
	SecondCache bool
	// Without contains the names of components that are not started. A test may start them later.
	Without []string
}

// Cluster is a running cluster that ends with the test.
type Cluster struct {
	// Dir is the working directory, with the layout of `shardplane dev`.
	Dir string
	// External is set if the cluster was running before the test: a test cannot stop its components, and objects remain unless
	// tests delete them.
	External bool

	t          testing.TB
	components []*Component
}

// Start starts a cluster and waits until it is ready. The cluster stops with the test. A component that ends by itself fails the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	shards := max(o.Shards, 1)
	replicated := 0
	if o.Replicas > 1 {
		replicated = 1 + o.Replicas
	}
	first := ports.Free(t, shards+4+shards*replicated)
	options := dev.NewOptions()
	options.WorkDir = t.TempDir()
	options.Shards = shards
	options.ShardPort, options.FrontProxyPort, options.CacheServerPort = first, first+shards, first+shards+1
	options.DevTokens, options.EncryptionConfigFile = o.DevTokens, o.EncryptionConfig
	completed, err := options.Complete()
	require.NoError(t, err)
	require.NoError(t, completed.Validate())
	commands, release, err := dev.Prepare(t.Context(), completed)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, release()) })

	c := &Cluster{Dir: completed.WorkDir, t: t}
	next := first + shards + 4
	for _, command := range commands {
		if replicated > 0 && command.Args[0] == "shard" {
			c.components = append(c.components, replicate(t, o, command, completed.WorkDir, next)...)
			next += replicated
			continue
		}
		c.components = append(c.components, newComponent(t, o, command, completed.WorkDir))
		if command.Args[0] == "front-proxy" && len(o.SecondProxy) > 0 {
			alone := o
			alone.ExtraArgs = nil
			c.components = append(c.components, second(t, alone, command, completed.WorkDir, first+shards+2, o.SecondProxy...))
		}
		if command.Args[0] == "cache-server" && o.SecondCache {
			args := []string{"--data-dir=" + filepath.Join(completed.WorkDir, ".kcp-cache-2"), "--cache-name=second"}
			c.components = append(c.components, second(t, o, command, completed.WorkDir, first+shards+3, args...))
		}
	}
	t.Cleanup(c.stop)
	for _, component := range c.components {
		if !slices.Contains(o.Without, component.Name) {
			component.Launch()
		}
	}
	for _, component := range c.components {
		if !slices.Contains(o.Without, component.Name) {
			component.WaitReady()
		}
	}
	return c
}

// Component returns a component by name: root, shard-1, …, cache-server or front-proxy.
func (c *Cluster) Component(name string) *Component {
	c.t.Helper()
	if c.External {
		c.t.Skipf("the test controls the component %s, which is not possible in the running cluster in %s: run it without CLUSTER", name, c.Dir)
	}
	for _, component := range c.components {
		if component.Name == name {
			return component
		}
	}
	c.t.Fatalf("the cluster has no component %q", name)
	return nil
}

// Proxy returns the configuration of an administrator for the front-proxy, without a logical cluster in the URL.
func (c *Cluster) Proxy() *rest.Config {
	return c.kubeconfig(filepath.Join(".kcp", "admin.kubeconfig"), "base")
}

// Shard returns the configuration of a system:masters client for shard n, without a logical cluster in the URL.
func (c *Cluster) Shard(n int) *rest.Config {
	return c.kubeconfig(filepath.Join(fmt.Sprintf(".kcp-%d", n), "admin.kubeconfig"), "shard-base")
}

// VirtualWorkspaces returns the prefix of URLs of virtual workspaces on shard n in endpoint slices and workspace types.
func (c *Cluster) VirtualWorkspaces(n int) string {
	return c.Proxy().Host + "/shards/" + ShardName(n)
}

// ShardName returns the name of shard n: root, shard-1, …
func ShardName(n int) string {
	if n == 0 {
		return "root"
	}
	return fmt.Sprintf("shard-%d", n)
}

// Cache returns the configuration of a system:masters client for the cache server.
func (c *Cluster) Cache() *rest.Config {
	return c.kubeconfig(filepath.Join(".kcp-cache", "cache.kubeconfig"), "cache")
}

// Kubeconfig returns the path of an administrator's kubeconfig for the front-proxy, with the logical cluster root.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, ".kcp", "admin.kubeconfig") }

// ShardKubeconfig returns the path of the kubeconfig for shard n.
func (c *Cluster) ShardKubeconfig(n int) string {
	return filepath.Join(c.Dir, fmt.Sprintf(".kcp-%d", n), "admin.kubeconfig")
}

// In returns config for a logical cluster, specified by name, path or "*".
func In(config *rest.Config, cluster string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = strings.TrimSuffix(config.Host, "/") + "/clusters/" + cluster
	return config
}

func (c *Cluster) kubeconfig(file, kubeContext string) *rest.Config {
	c.t.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(c.Dir, file)},
		&clientcmd.ConfigOverrides{CurrentContext: kubeContext},
	).ClientConfig()
	require.NoError(c.t, err)
	config.QPS = -1
	return config
}

// stop stops the components in reverse order.
func (c *Cluster) stop() {
	for _, component := range slices.Backward(c.components) {
		component.end()
	}
}

// FreePort returns a free port that is not used for outgoing connections while the server is stopped.
func FreePort(t testing.TB) int {
	t.Helper()
	return ports.Free(t, 1)
}

// probe returns an error if the server at url is not ready.
func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // for slow servers
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // only checks readiness
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz returned %s", response.Status)
	}
	return nil
}

// tail returns the end of a log for failure messages.
func tail(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	if len(data) > most {
		data = data[len(data)-most:]
	}
	return string(data)
}
