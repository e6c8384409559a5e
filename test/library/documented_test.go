package library

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// testTimeout is how long tests wait for what happens at once on an idle machine.
const testTimeout = 2 * time.Minute

// cluster is that of all tests, as shardplane dev starts it.
var cluster = harness.Shared{}

// block returns the first block of docs/client.md that begins so.
func block(t *testing.T, begins string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/client.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(page), "\n"+begins+"\n")
	require.True(t, found, begins)
	content, _, found := strings.Cut(after, "```\n")
	require.True(t, found, begins)
	return content
}

// TestDocumentedController: the program of docs/client.md, in a module of its own that requires
// this one, is a controller that works, after the commands that stand there.
func TestDocumentedController(t *testing.T) {
	file, err := os.ReadFile("greeter/main.go")
	require.NoError(t, err)
	page := block(t, "```go")
	require.Equal(t, string(file), page, "docs/client.md has what is in test/library/greeter")
	program := build(t, page)

	dir := t.TempDir()
	kubeconfig, err := os.ReadFile(cluster.Get(t).Kubeconfig())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".kcp"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".kcp", "admin.kubeconfig"), kubeconfig, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "greetings.yaml"), []byte(block(t, "```yaml")), 0o600))
	before, after, found := strings.Cut(block(t, "```sh"), "go run . --kubeconfig greetings.kubeconfig &\n")
	require.True(t, found)
	sh := func(commands string) (string, error) {
		command := exec.CommandContext(t.Context(), "sh", "-ec", commands)
		command.Dir = dir
		command.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG=.kcp/admin.kubeconfig", "PATH="+filepath.Dir(harness.Kubectl(t))+":"+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		return string(out), err
	}
	out, err := sh(before)
	require.NoError(t, err, out)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	command := exec.CommandContext(ctx, program, "--kubeconfig", "greetings.kubeconfig")
	command.Dir = dir
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	said := &strings.Builder{}
	command.Stdout, command.Stderr = said, said
	require.NoError(t, command.Start())
	out, err = sh(after)
	stop()
	_ = command.Wait()
	require.NoError(t, err, "%s%s", out, said)
	require.Zero(t, command.ProcessState.ExitCode(), "it ends when it is told to: %s", said)
}

// build builds a program in a module of its own, by the versions that this one requires.
func build(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	house, err := filepath.Abs("../..")
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(house, "go.mod"))
	require.NoError(t, err)
	sum, err := os.ReadFile(filepath.Join(house, "go.sum"))
	require.NoError(t, err)
	own := strings.TrimSuffix(module, "/")
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module example.io/greeter"))
	mod = append(mod, "\nrequire "+own+" v0.0.0\nreplace "+own+" => "+house+"\n"...)
	for name, content := range map[string][]byte{"go.mod": mod, "go.sum": sum, "main.go": []byte(program)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	built := filepath.Join(dir, "greeter")
	command := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-buildvcs=false", "-ldflags=-s -w", "-o", built, ".")
	command.Dir = dir
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return built
}
