// Package reference compares the generated pages in docs/reference with the code. `make generate` writes them: it
// runs the tests named TestReference… with the flag -rewrite.
package reference

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the pages in docs/reference instead of comparing them")

// Compare compares the page docs/reference/<name> with its content.
func Compare(t testing.TB, name, content string) {
	t.Helper()
	path := filepath.Join(Root(t), "docs", "reference", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, string(page), "docs/reference/%s is out of date: run make generate", name)
}

// Root returns the directory of the module that contains the tested package.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		require.NotEqual(t, dir, filepath.Dir(dir), "no parent directory contains go.mod")
		dir = filepath.Dir(dir)
	}
}

// Table is a table in Markdown.
type Table struct {
	Header []string
	Rows   [][]string
}

// Sort sorts the rows by their first cells, without regard to case.
func (t Table) Sort() Table {
	slices.SortFunc(t.Rows, func(a, b []string) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a[0]), strings.ToLower(b[0])), slices.Compare(a, b))
	})
	return t
}

// String returns the table, or an empty string if it has no rows. Rows have no pipes at their ends, as in the
// documentation of Kubernetes.
func (t Table) String() string {
	if len(t.Rows) == 0 {
		return ""
	}
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintln(&b, strings.TrimSuffix(strings.Join(cells, " | "), " ")) }
	line(t.Header)
	b.WriteString("---" + strings.Repeat("|---", len(t.Header)-1) + "\n")
	for _, row := range t.Rows {
		cells := slices.Clone(row)
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", `\|`)
		}
		line(cells)
	}
	return b.String()
}

// Code formats names as code, separated by commas.
func Code(names ...string) string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, "`"+name+"`")
	}
	return strings.Join(quoted, ", ")
}
