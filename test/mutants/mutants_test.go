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

var onlyFlag = flag.String("only", "", "names of the mutants to test, separated by commas; all by default")

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

// TestFit checks that each patch can be applied, that the result can be parsed, and that the test that must find it exists.
func TestFit(t *testing.T) {
	all := mutants.All()
	require.Greater(t, len(all), 20)
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, m.Rule)
			require.NotEmpty(t, m.Edits)
			suite := m.CaughtBy == mutants.SuiteRobustness || m.CaughtBy == mutants.SuiteIsolation
			require.Equal(t, suite, m.Test == "", "set Test if and only if CaughtBy is a package, not a suite")
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
			if !suite {
				_, err := mutants.Switchable(t.TempDir(), root(t), name)
				require.NoError(t, err)
			}
		})
	}
}

// TestDoesNotFit checks the errors if the product has changed.
func TestDoesNotFit(t *testing.T) {
	_, err := mutants.Overlay(t.TempDir(), t.TempDir(), "namesake")
	require.ErrorIs(t, err, os.ErrNotExist)

	changed := t.TempDir()
	file := filepath.Join(changed, mutants.All()["namesake"].Edits[0].File)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("package identity\n"), 0o600))
	_, err = mutants.Overlay(t.TempDir(), changed, "namesake")
	require.ErrorContains(t, err, "0 times instead of once")

	_, err = mutants.Overlay(t.TempDir(), root(t), "unknown")
	require.ErrorContains(t, err, `mutant "unknown" does not exist`)
}

// TestCaught checks that the specified test finds each mutant. Test binaries are built once, with all mutants.
func TestCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds the tests of other packages with mutants")
	}
	names := slices.Sorted(maps.Keys(mutants.All()))
	if *onlyFlag != "" {
		names = strings.Split(*onlyFlag, ",")
	}
	tests := map[string][]mutants.Mutant{}
	var all []string
	for _, name := range names {
		m, ok := mutants.All()[name]
		require.True(t, ok, "mutant %q does not exist", name)
		if m.Test != "" {
			tests[m.CaughtBy] = append(tests[m.CaughtBy], m)
			all = append(all, name)
		}
	}
	require.NotEmpty(t, all)
	dir := t.TempDir()
	overlay, err := mutants.Switchable(dir, root(t), all...)
	require.NoError(t, err)
	for pkg, list := range tests {
		t.Run(strings.TrimPrefix(pkg, "./"), func(t *testing.T) {
			t.Parallel()
			binary := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, pkg)
			build.Dir = root(t)
			output, err := build.CombinedOutput()
			require.NoError(t, err, "%s", output)
			for _, m := range list {
				t.Run(m.Name, func(t *testing.T) { caught(t, m, binary) })
			}
			require.NoError(t, os.Remove(binary))
		})
	}
}

func caught(t *testing.T, m mutants.Mutant, binary string) {
	command := exec.CommandContext(t.Context(), binary, "-test.count=1", "-test.timeout=10m", "-test.run", "^"+m.Test+"$")
	command.Dir = filepath.Join(root(t), m.CaughtBy)
	command.Env = append(os.Environ(), mutants.ActiveEnv+"="+m.Name)
	output, err := command.CombinedOutput()
	require.Error(t, err, "%s passed with mutant %s, so that this rule is not tested: %s", m.Test, m.Name, m.Rule)
	require.Contains(t, string(output), "--- FAIL: "+m.Test, "the binary failed, but not in the test:\n%.4000s", output)
	t.Logf("%s of %s checks the rule: %s", m.Test, m.CaughtBy, m.Rule)
}
