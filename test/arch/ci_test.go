package arch_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContinuousIntegrationRunsTheREADME checks that .ci/run uses the test command of the README, which must be a target of the Makefile.
func TestContinuousIntegrationRunsTheREADME(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "../../.ci/run", "--test-command").CombinedOutput()
	require.NoError(t, err, "%s", out)
	command := strings.TrimSpace(string(out))

	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^`+regexp.QuoteMeta(command), string(readme))

	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	target, ok := strings.CutPrefix(command, "make ")
	require.True(t, ok, "the README's test command is %q, not a make target", command)
	require.Regexp(t, `(?m)^`+regexp.QuoteMeta(target)+`:.*## `, string(makefile))
}

// TestDocsAreListed checks that the index lists all pages.
func TestDocsAreListed(t *testing.T) {
	index, err := os.ReadFile("../../docs/README.md")
	require.NoError(t, err)
	err = filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if page := strings.TrimPrefix(path, "../../docs/"); filepath.Ext(page) == ".md" && page != "README.md" {
			require.Contains(t, string(index), "("+page+")", "docs/README.md does not list it")
		}
		return err
	})
	require.NoError(t, err)
}

// TestMakefileRunsTests checks that each -run pattern in the Makefile matches a test in each of its packages, because
// go test succeeds without a test.
func TestMakefileRunsTests(t *testing.T) {
	const root = "../.."
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	recipe := regexp.MustCompile(`(?m)^\t(?:cd (\S+) && )?.*\$\(GO_TEST\)(.*) -run '?([^' ]+)`)
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	checked := 0
	for _, command := range recipe.FindAllStringSubmatch(string(makefile), -1) {
		name, _, _ := strings.Cut(strings.ReplaceAll(command[3], "$$", "$"), "/")
		if name == "xxx" { // only benchmarks
			continue
		}
		packages := strings.Fields(command[2])
		if len(packages) == 0 {
			packages = []string{"."}
		}
		pattern := regexp.MustCompile(name)
		for _, path := range packages {
			files, err := filepath.Glob(filepath.Join(root, command[1], path, "*_test.go"))
			require.NoError(t, err)
			found := false
			for _, file := range files {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				for _, match := range test.FindAllStringSubmatch(string(content), -1) {
					found = found || pattern.MatchString(match[1])
				}
			}
			require.True(t, found, "%s: no test in %s matches", strings.TrimSpace(command[0]), path)
			checked++
		}
	}
	require.Greater(t, checked, 10)
}
