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
