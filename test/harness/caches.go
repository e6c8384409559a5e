package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev"
)

// secondCache returns a cache server beside the one of the command, with a database of its own.
func secondCache(t testing.TB, o Options, command dev.Command, dir string, port int) *Component {
	t.Helper()
	command.Name, command.URL = command.Name+"-2", localURL("https", port)
	command.Args = append(slices.Clone(command.Args), "--secure-port="+strconv.Itoa(port), "--data-dir="+filepath.Join(dir, ".kcp-cache-2"), "--cache-name=second")
	return newComponent(t, o, command, dir)
}

// withSecondCache returns the arguments of a shard that pushes to the cache server at first and to
// that at second, and reads from the former as long as that answers.
func withSecondCache(t testing.TB, args []string, first, second string) []string {
	t.Helper()
	const flag = "--cache-kubeconfig="
	n := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	file := strings.TrimPrefix(args[n], flag)
	kubeconfig, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(kubeconfig), first)
	config := filepath.Join(filepath.Dir(file), "caches.yaml")
	for name, content := range map[string]string{
		file + "-2": strings.ReplaceAll(string(kubeconfig), first, second),
		config:      fmt.Sprintf("caches:\n- {name: first, kubeconfig: %q, push: true, read: 1}\n- {name: second, kubeconfig: %q, push: true, read: 2}\n", file, file+"-2"),
	} {
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	}
	return append(slices.Delete(slices.Clone(args), n, n+1), "--cache-config="+config)
}
