package harness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/mutants"
)

// BinaryEnv, KubectlEnv and DexEnv name the environment variables with the paths of built
// programs; without them the harness builds its own. PreviousBinaryEnv names that
// of the release before, which the harness does not build.
const (
	BinaryEnv         = "SHARDPLANE_BINARY"
	KubectlEnv        = "SHARDPLANE_KUBECTL"
	DexEnv            = "SHARDPLANE_DEX"
	PreviousBinaryEnv = "SHARDPLANE_PREVIOUS_BINARY"
)

// program is a program that is built once for all tests of a package.
type program struct {
	name, dir, pkg, env string
	flags               []string

	once   sync.Once
	path   string
	remove string
	err    error
}

var (
	shardplane = program{name: "shardplane", dir: ".", pkg: "./cmd/shardplane", env: BinaryEnv}
	kubectl    = program{name: "kubectl", dir: "tools", pkg: "./kubectl", env: KubectlEnv}
	dex        = program{name: "dex", dir: "tools", pkg: "./dex", env: DexEnv}
)

// Binary returns the path of the shardplane binary.
func Binary(t testing.TB) string {
	t.Helper()
	return shardplane.get(t)
}

// Mutated returns the path of a shardplane binary with mutants, so that a test
// can show that it finds them. It goes with the test.
func Mutated(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	overlay, err := mutants.Overlay(dir, Root(), names...)
	require.NoError(t, err)
	mutated := program{name: "shardplane", dir: ".", pkg: "./cmd/shardplane", flags: []string{"-ldflags=-s -w", "-overlay=" + overlay}}
	binary := filepath.Join(dir, mutated.name)
	require.NoError(t, mutated.build(binary))
	return binary
}

// Seed returns the seed of a test's random choices: that of its flag, or one that
// is drawn. The test prints it.
func Seed(flag uint64) uint64 {
	if flag != 0 {
		return flag
	}
	return rand.Uint64N(1_000_000_000) + 1
}

// Kubectl returns the path of a kubectl of the Kubernetes release that
// Shardplane is built on.
func Kubectl(t testing.TB) string {
	t.Helper()
	return kubectl.get(t)
}

// Dex returns the path of dex, an OpenID Connect issuer, as tools/dex says.
func Dex(t testing.TB) string {
	t.Helper()
	return dex.get(t)
}

// removeBinaries removes what Binary, Kubectl and Dex built.
func removeBinaries() {
	for _, p := range []*program{&shardplane, &kubectl, &dex} {
		if p.remove != "" {
			_ = os.RemoveAll(p.remove)
		}
	}
}

func (p *program) get(t testing.TB) string {
	t.Helper()
	p.once.Do(func() {
		if p.env != "" && os.Getenv(p.env) != "" {
			p.path = os.Getenv(p.env)
			return
		}
		if p.remove, p.err = os.MkdirTemp("", "shardplane-test"); p.err == nil { //nolint:usetesting // tests share it
			p.path = filepath.Join(p.remove, p.name)
			p.err = p.build(p.path)
		}
	})
	require.NoError(t, p.err)
	return p.path
}

func (p *program) build(binary string) error {
	args := append([]string{"build", "-buildvcs=false", "-o", binary}, p.flags...)
	command := exec.Command("go", append(args, p.pkg)...)
	command.Dir = filepath.Join(Root(), p.dir)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", p.name, err, output)
	}
	return nil
}

// Root returns the directory of the module, in which tests run somewhere.
var Root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "shardplane")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic(fmt.Sprintf("tests run in a directory of the module: %v", err))
})

// process is a component as a process of its own.
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
func (p *process) pause(still bool) error {
	if still {
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
