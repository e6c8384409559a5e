// Package harness starts whole Shardplane clusters for tests, of real servers
// over real TLS on real etcd: shards, front-proxy and cache server, inside the
// test process or as processes of the built binary, with the same flags that
// `shardplane dev` gives them. One test body serves both.
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

// StartTimeout bounds how long a component may take to become ready; it is
// generous, because test machines are busy.
const StartTimeout = time.Minute

// Mode says where the components run.
type Mode int

const (
	// InProcess runs the components as goroutines: quick, and debuggable.
	InProcess Mode = iota
	// Processes runs them as processes of the built binary, which can be killed.
	Processes
)

// Options shape a cluster. The zero value is one shard in the test process,
// with front-proxy and cache server.
type Options struct {
	// Mode says where the components run.
	Mode Mode
	// Binary is run by Processes instead of what Binary returns.
	Binary string
	// Shards is how many; 0 means one.
	Shards int
	// Replicas is how many processes each shard has; 0 and 1 mean that it has an
	// embedded etcd. More share an etcd that is a process of its own, for which
	// the package's TestMain calls Main.
	Replicas int
	// DevTokens accepts the tokens of the development cluster.
	DevTokens bool
	// EncryptionConfig is an EncryptionConfiguration file for shards and cache
	// server; empty stores all in clear text.
	EncryptionConfig string
	// Fsync keeps etcd's writes safe from a crash of the machine, at the price
	// of time.
	Fsync bool
	// ExtraArgs are added to the arguments of the components that start with
	// the given subcommand, shard, front-proxy or cache-server, or that have the given name,
	// as shard-1.
	ExtraArgs map[string][]string
	// SecondProxy are the further arguments of a second front-proxy, front-proxy-2; it
	// has none of ExtraArgs. There is none without any.
	SecondProxy []string
	// SecondCache adds a cache server, cache-server-2, with a database of its own. No shard uses it
	// unless ExtraArgs say so.
	SecondCache bool
	// Without leaves out components by name; they can be started later.
	Without []string
}

// Cluster is a running cluster of a test, which ends with the test.
type Cluster struct {
	// Dir is the working directory, laid out as `shardplane dev` does.
	Dir string
	// External is set if the cluster was running before the test: it has no components that
	// a test could stop, and keeps what tests do not delete.
	External bool

	t          testing.TB
	components []*Component
}

// Start starts a cluster and returns when all of it is ready. The cluster stops
// when the test ends; a component that ended by itself fails the test.
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
	deployment, err := dev.Prepare(t.Context(), completed)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, deployment.Release()) })

	c := &Cluster{Dir: completed.WorkDir, t: t}
	second, next := first+shards+3, first+shards+4
	for _, command := range deployment.Commands {
		if replicated > 0 && command.Args[0] == "shard" {
			c.components = append(c.components, replicate(t, o, command, completed.WorkDir, next)...)
			next += replicated
			continue
		}
		c.components = append(c.components, newComponent(t, o, command, completed.WorkDir))
		if command.Args[0] == "front-proxy" && len(o.SecondProxy) > 0 {
			c.components = append(c.components, secondProxy(t, o, command, completed.WorkDir, first+shards+2))
		}
		if command.Args[0] == "cache-server" && o.SecondCache {
			c.components = append(c.components, secondCache(t, o, command, completed.WorkDir, second))
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

// Component returns the component of that name: root, shard-1, …, cache-server
// or front-proxy.
func (c *Cluster) Component(name string) *Component {
	c.t.Helper()
	if c.External {
		c.t.Skipf("the test controls the component %s, which the running cluster in %s does not allow; run it without CLUSTER", name, c.Dir)
	}
	for _, component := range c.components {
		if component.Name == name {
			return component
		}
	}
	c.t.Fatalf("the cluster has no component %q", name)
	return nil
}

// Proxy returns the configuration of an administrator's client of the
// front-proxy, without a logical cluster in its URL.
func (c *Cluster) Proxy() *rest.Config {
	return c.kubeconfig(filepath.Join(".kcp", "admin.kubeconfig"), "base")
}

// Shard returns the configuration of a system:masters client of shard n,
// without a logical cluster in its URL.
func (c *Cluster) Shard(n int) *rest.Config {
	return c.kubeconfig(filepath.Join(fmt.Sprintf(".kcp-%d", n), "admin.kubeconfig"), "shard-base")
}

// VirtualWorkspaces returns the URL with which the URLs of shard n in endpoint slices and workspace types start.
func (c *Cluster) VirtualWorkspaces(n int) string {
	name := "root"
	if n > 0 {
		name = fmt.Sprintf("shard-%d", n)
	}
	return c.Proxy().Host + "/shards/" + name
}

// Cache returns the configuration of a system:masters client of the cache
// server.
func (c *Cluster) Cache() *rest.Config {
	return c.kubeconfig(filepath.Join(".kcp-cache", "cache.kubeconfig"), "cache")
}

// Kubeconfig returns the path of an administrator's kubeconfig for the
// front-proxy; its current context is the logical cluster root.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, ".kcp", "admin.kubeconfig") }

// ShardKubeconfig returns the path of the kubeconfig for shard n.
func (c *Cluster) ShardKubeconfig(n int) string {
	return filepath.Join(c.Dir, fmt.Sprintf(".kcp-%d", n), "admin.kubeconfig")
}

// In returns config with its URL at the logical cluster, by name, path or "*".
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

// stop stops what runs, in reverse order.
func (c *Cluster) stop() {
	for _, component := range slices.Backward(c.components) {
		component.end()
	}
}

// FreePort returns a port that is free, and that no outgoing connection takes
// while what listens on it is down.
func FreePort(t testing.TB) int {
	t.Helper()
	return ports.Free(t, 1)
}

// probe says why the server at url is not ready; nil when it is.
func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // slow ones answer, too
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // asks only whether it is there
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz answers %s", response.Status)
	}
	return nil
}

// tail returns the end of a file, for messages about what went wrong.
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
