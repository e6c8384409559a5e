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

// instance is one life of a component.
type instance interface {
	// stop asks for an orderly end.
	stop()
	// kill ends it at once, as kill -9 does.
	kill() error
	// pause has it stand still, or go on.
	pause(still bool) error
	// done is closed when it has ended.
	done() <-chan struct{}
	// err says how it ended, once done.
	err() error
}

// errNotKillable says that a goroutine can be neither killed nor paused.
var errNotKillable = errors.New("a component inside the test process can be neither killed nor paused: use harness.Processes")

// Component is one server of a cluster, which a test may stop, kill and start
// again. Its methods fail the test where they cannot do what they say.
type Component struct {
	// Name is root, shard-1, …, cache-server or front-proxy. With Replicas there
	// are root-replica-2, … and etcd-root, too.
	Name string
	// URL is where it answers.
	URL string

	t testing.TB
	*life
}

// life is what all tests see of a component that they share.
type life struct {
	log  string
	open func() (instance, error)

	mu      sync.Mutex
	binary  string   // of processes
	extra   []string // arguments that win over others
	current instance
}

func newComponent(t testing.TB, o Options, command dev.Command, dir string) *Component {
	t.Helper()
	args := append([]string(nil), command.Args...)
	if subcommand := args[0]; subcommand != "front-proxy" && !o.Fsync {
		args = append(args, "--unsafe-no-fsync")
	}
	if o.Binary != "" { // the previous release does not know them
		args = slices.DeleteFunc(args, func(arg string) bool {
			flag, _, _ := strings.Cut(arg, "=")
			return slices.Contains([]string{"--webhook-allowed-cidrs", "--workspace-issuer-allowed-cidrs", "--virtual-workspace-url"}, flag)
		})
	}
	subcommand := args[0]
	if o.Binary != "" && subcommand == "shard" { // nor shards that are not system:masters
		args = append(args, asMasters(args, dir)...)
	}
	args = append(args, o.ExtraArgs[subcommand]...)
	if command.Name != subcommand {
		args = append(args, o.ExtraArgs[command.Name]...)
	}
	c := &Component{Name: command.Name, URL: command.URL, t: t, life: &life{log: filepath.Join(dir, command.Name+".log")}}
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

// asMasters returns arguments of a shard that win over args: with them it is a member of
// system:masters on the others.
func asMasters(args []string, dir string) []string {
	wins := []string{
		"--shard-client-cert-file=" + filepath.Join(dir, ".kcp", "shard-admin.crt"),
		"--shard-client-key-file=" + filepath.Join(dir, ".kcp", "shard-admin.key"),
		"--cache-kubeconfig=" + filepath.Join(dir, ".kcp-cache", "cache.kubeconfig"),
	}
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--root-kubeconfig=") }) {
		wins = append(wins, "--root-kubeconfig="+filepath.Join(dir, ".kcp-0", "admin.kubeconfig"))
	}
	return wins
}

// Start starts a component that was stopped or killed and waits until it is
// ready.
func (c *Component) Start() {
	c.t.Helper()
	c.Launch()
	c.WaitReady()
}

// Restart stops the component in order and starts it again.
func (c *Component) Restart() {
	c.t.Helper()
	c.Stop()
	c.Start()
}

// RestartWith is Restart with arguments that win over those that the component has, until it is
// called again.
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

// Replace restarts the component with another binary, as an upgrade does. It must
// run as a process.
func (c *Component) Replace(binary string) {
	c.t.Helper()
	c.Stop()
	c.mu.Lock()
	require.NotEmpty(c.t, c.binary, "%s runs no binary", c.Name)
	c.binary = binary
	c.mu.Unlock()
	c.Start()
}

// Stop stops the component in order and waits for its end.
func (c *Component) Stop() {
	c.t.Helper()
	running := c.take()
	running.stop()
	<-running.done()
	require.NoError(c.t, running.err(), "%s did not stop in order", c.Name)
}

// Kill ends the component at once, as a crash would, and waits for its end.
func (c *Component) Kill() {
	c.t.Helper()
	running := c.take()
	require.NoError(c.t, running.kill())
	<-running.done()
}

// Pause has the component stand still, as a machine does that swaps or is moved:
// its connections stay open and nobody answers. Resume has it go on.
func (c *Component) Pause() {
	c.t.Helper()
	c.pause(true)
}

// Resume ends a Pause.
func (c *Component) Resume() {
	c.t.Helper()
	c.pause(false)
}

func (c *Component) pause(still bool) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.NotNil(c.t, c.current, "%s is not running", c.Name)
	require.NoError(c.t, c.current.pause(still))
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

// Handler returns what answers the component's requests, all of it, behind the
// network. It runs in the test process, and Handler returns another one after a
// restart.
func (c *Component) Handler() http.Handler {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	g, ok := c.current.(*goroutine)
	require.True(c.t, ok, "%s does not run in the test process", c.Name)
	return g.server.Handler()
}

// Launch starts the component and does not wait until it is ready.
func (c *Component) Launch() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Nil(c.t, c.current, "%s runs already", c.Name)
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
	_ = running.pause(false) // a test that failed may have left it so
	running.stop()
	select {
	case <-running.done():
		if err := running.err(); err != nil {
			c.t.Errorf("%s did not stop in order: %v\n%s", c.Name, err, tail(c.log))
		}
	case <-time.After(StartTimeout):
		_ = running.kill()
		c.t.Errorf("%s did not stop within %s\n%s", c.Name, StartTimeout, tail(c.log))
	}
}
