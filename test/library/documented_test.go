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

// testTimeout limits waiting for a state.
const testTimeout = 2 * time.Minute

// cluster is shared by the tests.
var cluster = harness.Shared{}

// block returns the first code block of docs/client.md with an opening line.
func block(t *testing.T, begins string) string {
	t.Helper()
	page := harness.ReadFile(t, "../../docs/client.md")
	_, after, found := strings.Cut(string(page), "\n"+begins+"\n")
	require.True(t, found, begins)
	content, _, found := strings.Cut(after, "```\n")
	require.True(t, found, begins)
	return content
}

// TestDocumentedController checks that the program of docs/client.md, in a separate module that requires this one, works with the
// documented commands.
func TestDocumentedController(t *testing.T) {
	file := harness.ReadFile(t, "greeter/main.go")
	page := block(t, "```go")
	require.Equal(t, string(file), page, "docs/client.md must contain test/library/greeter/main.go")
	program := build(t, page)

	dir := t.TempDir()
	kubeconfig := harness.ReadFile(t, cluster.Get(t).Kubeconfig())
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
	output := &strings.Builder{}
	command.Stdout, command.Stderr = output, output
	require.NoError(t, command.Start())
	out, err = sh(after)
	stop()
	_ = command.Wait()
	require.NoError(t, err, "%s%s", out, output)
	require.Zero(t, command.ProcessState.ExitCode(), "the program must end gracefully: %s", output)
}

// build builds a program in a separate module with the dependencies of this one.
func build(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	mod := harness.ReadFile(t, filepath.Join(root, "go.mod"))
	sum := harness.ReadFile(t, filepath.Join(root, "go.sum"))
	own := strings.TrimSuffix(module, "/")
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module example.io/greeter"))
	mod = append(mod, "\nrequire "+own+" v0.0.0\nreplace "+own+" => "+root+"\n"...)
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
