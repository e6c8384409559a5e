// Package documented reads what the documentation says of conditions, for tests of the code that
// sets them.
package documented

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Conditions returns the conditions with their reasons, each as "<condition> <reason>", of a table in
// a document below docs, which has the header: they are the names in backquotes of the first two
// columns. A row without a condition is about those of the row before.
func Conditions(t testing.TB, document, header string) []string {
	t.Helper()
	var found, kinds []string
	for _, cells := range rows(t, document, header) {
		if named := names(cells[0]); len(named) > 0 {
			kinds = named
		}
		for _, kind := range kinds {
			for _, reason := range names(cells[1]) {
				found = append(found, kind+" "+reason)
			}
		}
	}
	return found
}

// Reasons returns the names in backquotes of the first column of a table in a document below docs,
// which has the header.
func Reasons(t testing.TB, document, header string) []string {
	t.Helper()
	var found []string
	for _, cells := range rows(t, document, header) {
		found = append(found, names(cells[0])...)
	}
	return found
}

// rows returns the cells of the table with the header.
func rows(t testing.TB, document, header string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "docs", document))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| "+header+" |\n")
	require.True(t, ok, "%s has no table with the header %q", document, header)
	table, _, _ = strings.Cut(table, "\n\n")
	columns := strings.Count(header, "|") + 1
	var all [][]string
	for i, row := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		require.Len(t, cells, columns, row)
		if i > 0 { // the first one are dashes
			all = append(all, cells)
		}
	}
	return all
}

var quoted = regexp.MustCompile("`([A-Za-z]+)`")

func names(cell string) (all []string) {
	for _, match := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, match[1])
	}
	return all
}

// root is the directory of the module, in one of whose packages the test runs.
func root(t testing.TB) string {
	t.Helper()
	directory, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory
		}
		require.NotEqual(t, directory, filepath.Dir(directory), "there is no go.mod above")
		directory = filepath.Dir(directory)
	}
}
