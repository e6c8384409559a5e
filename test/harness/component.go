package harness

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev"
)

// instance is a running server.
type instance interface {
	// stop starts a graceful shutdown.
	stop()
	// kill ends the server immediately, like kill -9.
	kill() error
	// pause stops or continues the process.
	pause(stop bool) error
	// done is closed when the server has ended.
	done() <-chan struct{}
	// err returns the result of the server. It is valid when done is closed.
	err() error
}

// errNotKillable is returned for servers inside of the test process.
var errNotKillable = errors.New("a component inside the test process can be neither killed nor paused: use harness.Processes")

// Component is a server of a cluster, which a test may stop, kill and start. Its methods fail the test on errors.
type Component struct {
	// Name is root, shard-1, …, cache-server or front-proxy. With Replicas there also are root-replica-2, … and etcd-root.
	Name string
	// URL is the URL of the server.
	URL string

	t testing.TB
	*componentState
}

// componentState is the state of a component that all tests share.
type componentState struct {
	log  string
	open func() (instance, error)

	mu      sync.Mutex
	binary  string   // of processes
	extra   []string // appended, so that they take precedence
	current instance
}

func newComponent(t testing.TB, o Options, command dev.Command, dir string) *Component {
	t.Helper()
	args := append([]string(nil), command.Args...)
	if subcommand := args[0]; subcommand != "front-proxy" && !o.Fsync {
		args = append(args, "--unsafe-no-fsync")
	}
	if o.Binary != "" { // unknown to the previous release
		args = slices.DeleteFunc(args, func(arg string) bool {
			flag, _, _ := strings.Cut(arg, "=")
			return slices.Contains([]string{"--webhook-allowed-cidrs", "--workspace-issuer-allowed-cidrs", "--virtual-workspace-url"}, flag)
		})
	}
	subcommand := args[0]
	if o.Binary != "" && subcommand == "shard" { // must be a member of system:masters
		args = append(args, asMasters(args, dir)...)
	}
	args = append(args, o.ExtraArgs[subcommand]...)
	if command.Name != subcommand {
		args = append(args, o.ExtraArgs[command.Name]...)
	}
	c := &Component{Name: command.Name, URL: command.URL, t: t, componentState: &componentState{log: filepath.Join(dir, command.Name+".log")}}
	switch o.Mode {
	case Processes:
		c.binary = o.Binary
		if c.binary == "" {
			c.binary = Binary(t)
		}
		c.open = func() (instance, error) { return openProcess(c.binary, slices.Concat(args, c.extra), nil, c.log) }
	case InProcess:
		// The servers outlive the test's context, which ends before cleanups.
		ctx := context.WithoutCancel(t.Context())
		c.open = func() (instance, error) { return openGoroutine(ctx, slices.Concat(args, c.extra)) }
	}
	return c
}

// asMasters returns arguments with which a shard is a member of system:masters on other shards. They override args.
func asMasters(args []string, dir string) []string {
	overrides := []string{
		"--shard-client-cert-file=" + filepath.Join(dir, ".kcp", "shard-admin.crt"),
		"--shard-client-key-file=" + filepath.Join(dir, ".kcp", "shard-admin.key"),
		"--cache-kubeconfig=" + filepath.Join(dir, ".kcp-cache", "cache.kubeconfig"),
	}
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--root-kubeconfig=") }) {
		overrides = append(overrides, "--root-kubeconfig="+filepath.Join(dir, ".kcp-0", "admin.kubeconfig"))
	}
	return overrides
}

// Start starts a component and waits until it is ready.
func (c *Component) Start() {
	c.t.Helper()
	c.Launch()
	c.WaitReady()
}

// Restart stops the component gracefully and starts it.
func (c *Component) Restart() {
	c.t.Helper()
	c.Stop()
	c.Start()
}

// RestartWith is Restart with arguments that override others until it is called again.
func (c *Component) RestartWith(args ...string) {
	c.t.Helper()
	c.Stop()
	c.StartWith(args...)
}

// StartWith is Start with such arguments.
func (c *Component) StartWith(args ...string) {
	c.t.Helper()
	c.mu.Lock()
	c.extra = args
	c.mu.Unlock()
	c.Start()
}

// Replace restarts the component, which must run as a process, with another binary.
func (c *Component) Replace(binary string) {
	c.t.Helper()
	c.Stop()
	c.mu.Lock()
	require.NotEmpty(c.t, c.binary, "%s does not run as a process", c.Name)
	c.binary = binary
	c.mu.Unlock()
	c.Start()
}

// Stop stops the component gracefully and waits for its end.
func (c *Component) Stop() {
	c.t.Helper()
	running := c.take()
	running.stop()
	<-running.done()
	require.NoError(c.t, running.err(), "%s did not stop gracefully", c.Name)
}

// Kill ends the component immediately, like a crash, and waits for its end.
func (c *Component) Kill() {
	c.t.Helper()
	running := c.take()
	require.NoError(c.t, running.kill())
	<-running.done()
}

// Pause stops the process of the component until Resume is called. Connections stay open, and requests hang.
func (c *Component) Pause() {
	c.t.Helper()
	c.pause(true)
}

// Resume ends a Pause.
func (c *Component) Resume() {
	c.t.Helper()
	c.pause(false)
}

func (c *Component) pause(stop bool) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.NotNil(c.t, c.current, "%s is not running", c.Name)
	require.NoError(c.t, c.current.pause(stop))
}

// WaitReady waits until the component is ready.
func (c *Component) WaitReady() {
	c.t.Helper()
	c.mu.Lock()
	running := c.current
	c.mu.Unlock()
	require.NotNil(c.t, running, "%s is not started", c.Name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), StartTimeout)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := probe(ctx, c.URL)
		if err == nil {
			return
		}
		select {
		case <-running.done():
			c.t.Fatalf("%s ended while it started: %v\n%s", c.Name, running.err(), tail(c.log))
		case <-ctx.Done():
			c.t.Fatalf("%s did not become ready within %s: %v\n%s", c.Name, StartTimeout, err, tail(c.log))
		case <-ticker.C:
		}
	}
}

// Handler returns the handler of the component, which must run in the test process. It changes with a restart.
func (c *Component) Handler() http.Handler {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	g, ok := c.current.(*goroutine)
	require.True(c.t, ok, "%s does not run in the test process", c.Name)
	return g.server.Handler()
}

// Launch starts the component without waiting until it is ready.
func (c *Component) Launch() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Nil(c.t, c.current, "%s is already running", c.Name)
	running, err := c.open()
	require.NoError(c.t, err, "starting %s", c.Name)
	c.current = running
}

func (c *Component) take() instance {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.NotNil(c.t, c.current, "%s is not running", c.Name)
	running := c.current
	c.current = nil
	return running
}

// end stops the component at the end of the test.
func (c *Component) end() {
	c.mu.Lock()
	running := c.current
	c.current = nil
	c.mu.Unlock()
	if running == nil {
		return
	}
	select {
	case <-running.done():
		c.t.Errorf("%s ended by itself: %v\n%s", c.Name, running.err(), tail(c.log))
		return
	default:
	}
	_ = running.pause(false) // a failed test may not have resumed it
	running.stop()
	select {
	case <-running.done():
		if err := running.err(); err != nil {
			c.t.Errorf("%s did not stop gracefully: %v\n%s", c.Name, err, tail(c.log))
		}
	case <-time.After(StartTimeout):
		_ = running.kill()
		c.t.Errorf("%s did not stop within %s\n%s", c.Name, StartTimeout, tail(c.log))
	}
}
