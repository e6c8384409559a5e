package harness

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/mutants"
	"github.com/shardplane/shardplane/test/programs"
)

// PreviousBinaryEnv is the environment variable with the path of the shardplane binary of the previous release.
const PreviousBinaryEnv = "SHARDPLANE_PREVIOUS_BINARY"

// Binary returns the path of the shardplane binary.
func Binary(t testing.TB) string {
	t.Helper()
	return programs.Shardplane(t)
}

// Mutated builds a shardplane binary with mutants, which is deleted with the test, and returns its path.
func Mutated(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	overlay, err := mutants.Overlay(dir, Root(), names...)
	require.NoError(t, err)
	binary := filepath.Join(dir, "shardplane")
	command := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-overlay="+overlay, "-o", binary, "./cmd/shardplane")
	command.Dir = Root()
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return binary
}

// Seed returns the seed of a test's random choices: the value of its flag or, if that is 0, a random one.
func Seed(flag uint64) uint64 {
	if flag != 0 {
		return flag
	}
	return rand.Uint64N(1_000_000_000) + 1
}

// Kubectl returns the path of a kubectl of the Kubernetes release on which Shardplane is built.
func Kubectl(t testing.TB) string {
	t.Helper()
	return programs.Kubectl(t)
}

// Dex returns the path of dex, an OpenID Connect issuer, as configured by tools/dex.
func Dex(t testing.TB) string {
	t.Helper()
	return programs.Dex(t)
}

// Root returns the directory of the module.
func Root() string { return programs.Root() }

// process is a server in a separate process.
type process struct {
	command *exec.Cmd
	ended   chan struct{}
	result  error
}

func openProcess(binary string, args, env []string, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.Command(binary, args...), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), env...)
	p.command.Stdout, p.command.Stderr = file, file
	if err := p.command.Start(); err != nil {
		_ = file.Close()
		return nil, err
	}
	go func() {
		p.result = p.command.Wait()
		_ = file.Close()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) stop()       { _ = p.command.Process.Signal(syscall.SIGTERM) }
func (p *process) kill() error { return p.command.Process.Kill() }
func (p *process) pause(stop bool) error {
	if stop {
		return p.command.Process.Signal(syscall.SIGSTOP)
	}
	return p.command.Process.Signal(syscall.SIGCONT)
}
func (p *process) done() <-chan struct{} { return p.ended }
func (p *process) err() error            { return p.result }

// Pid returns the process id of the component, which must run as a process.
func (c *Component) Pid() int {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.current.(*process)
	require.True(c.t, ok, "%s is not a running process", c.Name)
	return p.command.Process.Pid
}
