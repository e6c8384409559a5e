// Package programs returns the programs that tests run: shardplane itself, and kubectl and an
// OpenID Connect issuer of the versions in tools/go.mod. make test builds them once and passes
// their paths in the environment. Otherwise the first test that needs one builds it with make.
package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Root returns the directory of the module, in a subdirectory of which tests run.
var Root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "shardplane")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic(fmt.Sprintf("the tests do not run inside of the module: %v", err))
})

var (
	shardplane = sync.OnceValues(func() (string, error) { return find("SHARDPLANE_BINARY", "bin/shardplane", "build") })
	kubectl    = sync.OnceValues(func() (string, error) { return find("SHARDPLANE_KUBECTL", "bin/kubectl", "bin/kubectl") })
	dex        = sync.OnceValues(func() (string, error) { return find("SHARDPLANE_DEX", "bin/dex", "bin/dex") })
)

// Shardplane returns the path of the shardplane binary.
func Shardplane(t testing.TB) string {
	t.Helper()
	return mustGet(t, shardplane)
}

// Kubectl returns the path of a kubectl of the Kubernetes release that Shardplane is built on.
func Kubectl(t testing.TB) string {
	t.Helper()
	return mustGet(t, kubectl)
}

// Dex returns the path of dex, an OpenID Connect issuer, see tools/dex.
func Dex(t testing.TB) string {
	t.Helper()
	return mustGet(t, dex)
}

func mustGet(t testing.TB, get func() (string, error)) string {
	t.Helper()
	path, err := get()
	require.NoError(t, err)
	return path
}

// find returns the path in the environment variable if the file exists, or that of the file that make builds.
func find(env, file, target string) (string, error) {
	path := os.Getenv(env)
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(Root(), file)
		command := exec.Command("make", "--no-print-directory", "-s", target)
		command.Dir = Root()
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("make %s: %w\n%s", target, err, out)
		}
	}
	// The go command does not use the cached result of a test if a file that the test has accessed was changed.
	_, err := os.Stat(path)
	return path, err
}
