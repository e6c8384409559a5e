package documented

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSections: a test of some package compares each section of the page with the code.
func TestSections(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), page))
	require.NoError(t, err)
	var documented, compared []string
	for _, match := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, match[1])
	}
	call := regexp.MustCompile(`documented\.Conditions\(t, "([^"]+)"\)`)
	err = filepath.WalkDir(filepath.Join(root(t), "pkg"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		test, err := os.ReadFile(path)
		for _, match := range call.FindAllStringSubmatch(string(test), -1) {
			compared = append(compared, match[1])
		}
		return err
	})
	require.NoError(t, err)
	require.ElementsMatch(t, documented, compared)
}
