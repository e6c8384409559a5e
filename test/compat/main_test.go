package compat_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	kcpclientset "github.com/kcp-dev/sdk/client/clientset/versioned/cluster"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	testTimeout = 2 * time.Minute
	tick        = 20 * time.Millisecond
)

// cluster is a development cluster of two shards in a separate process, which all tests share.
type cluster struct {
	dir     string
	program *exec.Cmd
	// ended is closed when the program has ended with err.
	ended chan struct{}
	err   error
}

var shared *cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "shardplane-compat")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := os.Getenv("SHARDPLANE_BINARY")
	if binary == "" {
		binary = filepath.Join(dir, "shardplane")
		build := exec.Command("go", "build", "-C", "../..", "-buildvcs=false", "-o", binary, "./cmd/shardplane")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("building the program: %w\n%s", err, out)
		}
	}
	// Another program may use a port meanwhile.
	for range 5 {
		if shared, err = start(binary, dir); err == nil {
			break
		}
	}
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.stop()) }()
	return m.Run(), nil
}

// start starts a development cluster and waits until it is ready.
func start(binary, dir string) (*cluster, error) {
	work, err := os.MkdirTemp(dir, "work")
	if err != nil {
		return nil, err
	}
	port, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(work, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c := &cluster{dir: work, ended: make(chan struct{})}
	c.program = exec.Command(binary, "dev", "--work-dir", work, "--shards=2", "--dev-tokens",
		fmt.Sprint("--shard-port=", port), fmt.Sprint("--front-proxy-port=", port+2), fmt.Sprint("--cache-server-port=", port+3))
	c.program.Stdout, c.program.Stderr = log, log
	if err := c.program.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.err = c.program.Wait()
		close(c.ended)
	}()
	for end := time.After(testTimeout); ; {
		if _, err := os.Stat(filepath.Join(work, ".kcp", "ready-to-test")); err == nil {
			return c, nil
		}
		select {
		case <-c.ended:
			content, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("the development cluster ended: %w\n%s", c.err, content)
		case <-end:
			return nil, errors.Join(errors.New("the development cluster did not become ready"), c.stop())
		case <-time.After(tick):
		}
	}
}

func (c *cluster) stop() error {
	if err := c.program.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-c.ended
	return c.err
}

// freePorts returns the first of n consecutive free ports.
func freePorts(n int) (int, error) {
	for range 100 {
		first, free := 12000+rand.IntN(18000), true
		for port := first; port < first+n && free; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return first, nil
		}
	}
	return 0, errors.New("no free ports were found")
}

func config(t *testing.T, file, name string) *rest.Config {
	t.Helper()
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(shared.dir, file)},
		&clientcmd.ConfigOverrides{CurrentContext: name},
	).ClientConfig()
	require.NoError(t, err)
	c.QPS = -1
	// kcp's clients append the logical cluster to the host.
	c.Host, _, _ = strings.Cut(c.Host, "/clusters/")
	return c
}

func proxy(t *testing.T) *rest.Config { return config(t, ".kcp/admin.kubeconfig", "base") }

func shard(t *testing.T, n int) *rest.Config {
	return config(t, fmt.Sprintf(".kcp-%d/admin.kubeconfig", n), "shard-base")
}

func cacheServer(t *testing.T) *rest.Config { return config(t, ".kcp-cache/cache.kubeconfig", "cache") }

var root = logicalcluster.NewPath("root")

// workspaces creates workspaces on a shard, and returns their logical clusters.
func workspaces(t *testing.T, prefix string, n int, on string) []logicalcluster.Name {
	t.Helper()
	clients, err := kcpclientset.NewForConfig(proxy(t))
	require.NoError(t, err)
	in := clients.Cluster(root).TenancyV1alpha1().Workspaces()
	names := make([]logicalcluster.Name, 0, n)
	for i := range n {
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, i)}}
		ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": on}}}
		_, err := in.Create(t.Context(), ws, metav1.CreateOptions{})
		require.NoError(t, err)
		eventually(t, "the workspace is not Ready", func() bool {
			ws, err = in.Get(t.Context(), ws.Name, metav1.GetOptions{})
			return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		})
		names = append(names, logicalcluster.Name(ws.Spec.Cluster))
	}
	return names
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, tick, what)
}

// informerContext returns a context for informers, which ends with the test.
func informerContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx
}
