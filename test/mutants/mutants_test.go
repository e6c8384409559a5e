package mutants_test

import (
	"flag"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/mutants"
)

var (
	allFlag  = flag.Bool("all", false, "try every mutant, not only a few")
	onlyFlag = flag.String("only", "", "try these mutants, separated by commas")
)

// sample are the mutants that every run tries, one for each of five rules: who one is,
// entering, permission claims, quotas and replication. Their tests start no server, so that
// each takes seconds.
var sample = []string{"namesake", "concealment", "any-verb", "hasty-place", "replica-alive"}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// hasTest reports whether a package of the module has a test.
func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), pkg, "*_test.go"))
	require.NoError(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return strings.Contains(string(text), "\nfunc "+name+"(")
	})
}

// TestFit holds that each mutant fits the product, and parses, and that the test is there
// that is to catch it.
func TestFit(t *testing.T) {
	all := mutants.All()
	require.Greater(t, len(all), 20)
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, m.Rule)
			require.NotEmpty(t, m.Edits)
			suite := m.CaughtBy == mutants.SuiteRobustness || m.CaughtBy == mutants.SuiteIsolation
			require.Equal(t, suite, m.Test == "", "a test of a package, or a suite")
			require.True(t, suite || hasTest(t, m.CaughtBy, m.Test), "%s has no %s", m.CaughtBy, m.Test)
			dir := t.TempDir()
			_, err := mutants.Overlay(dir, root(t), name)
			require.NoError(t, err)
			files, err := filepath.Glob(filepath.Join(dir, "*.go"))
			require.NoError(t, err)
			require.NotEmpty(t, files)
			for _, file := range files {
				_, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
				require.NoError(t, err)
			}
		})
	}
}

// TestDoesNotFit holds that a mutant of a product that has changed is an error.
func TestDoesNotFit(t *testing.T) {
	_, err := mutants.Overlay(t.TempDir(), t.TempDir(), "namesake")
	require.ErrorIs(t, err, os.ErrNotExist)

	changed := t.TempDir()
	file := filepath.Join(changed, mutants.All()["namesake"].Edits[0].File)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("package identity\n"), 0o600))
	_, err = mutants.Overlay(t.TempDir(), changed, "namesake")
	require.ErrorContains(t, err, "0 times, not once")

	_, err = mutants.Overlay(t.TempDir(), root(t), "unknown")
	require.ErrorContains(t, err, `no mutant is called "unknown"`)
}

// TestCaught runs the test that is to catch each mutant on the product with it.
func TestCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the tests of other packages")
	}
	names := sample
	switch {
	case *allFlag:
		names = slices.Sorted(maps.Keys(mutants.All()))
	case *onlyFlag != "":
		names = strings.Split(*onlyFlag, ",")
	}
	for _, name := range names {
		m, ok := mutants.All()[name]
		require.True(t, ok, "no mutant is called %q", name)
		if m.Test == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			overlay, err := mutants.Overlay(t.TempDir(), root(t), name)
			require.NoError(t, err)
			command := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-count=1", "-run", "^"+m.Test+"$", m.CaughtBy)
			command.Dir = root(t)
			output, err := command.CombinedOutput()
			require.Error(t, err, "%s passed %s: nothing holds that %s", name, m.Test, m.Rule)
			require.Contains(t, string(output), "--- FAIL: "+m.Test, "the test did not fail, something else did")
			used := command.ProcessState.UserTime() + command.ProcessState.SystemTime()
			t.Logf("%s: %s of %s holds that %s (%.0f s of processor time)", name, m.Test, m.CaughtBy, m.Rule, used.Seconds())
		})
	}
}
