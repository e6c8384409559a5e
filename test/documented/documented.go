// Package documented reads the conditions in the documentation, for tests that compare them with the
// code that sets them.
package documented

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/stretchr/testify/require"
)

const (
	page   = "docs/reference/conditions.md"
	header = "condition | reason | what to do"
)

// Conditions returns the conditions with their reasons, each as "<condition> <reason>", in the table
// below a heading of docs/reference/conditions.md: the names in backquotes of the first two columns. A
// row without a condition belongs to the conditions of the previous row.
func Conditions(t testing.TB, heading string) []string {
	t.Helper()
	var found, kinds []string
	for _, cells := range rows(t, heading) {
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

// Reported returns the conditions of objects that have a reason, in the same form and without
// duplicates.
func Reported(objects ...interface {
	GetConditions() conditionsv1alpha1.Conditions
},
) []string {
	found := map[string]bool{}
	for _, object := range objects {
		for _, c := range object.GetConditions() {
			if c.Reason != "" {
				found[string(c.Type)+" "+c.Reason] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// rows returns the cells of the table below the heading.
func rows(t testing.TB, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), page))
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, ok, "%s has no section %q", page, heading)
	section, _, _ = strings.Cut(section, "\n## ")
	_, table, ok := strings.Cut(section, "\n| "+header+" |\n")
	require.True(t, ok, "the section %q has no table with the header %q", heading, header)
	table, _, _ = strings.Cut(table, "\n\n")
	columns := strings.Count(header, "|") + 1
	var all [][]string
	for i, row := range strings.Split(strings.TrimSpace(table), "\n") {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		require.Len(t, cells, columns, row)
		if i > 0 { // the first row consists of dashes
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

// root returns the directory of the module, which contains the package of the test.
func root(t testing.TB) string {
	t.Helper()
	directory, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory
		}
		require.NotEqual(t, directory, filepath.Dir(directory), "no parent directory contains go.mod")
		directory = filepath.Dir(directory)
	}
}
