package library

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExamples: each type and each function that is public is used in an example whose output is
// checked. A type is used by its name, or by a function, method or field that has it.
func TestExamples(t *testing.T) {
	load := loader(t)
	for _, path := range public {
		if path == "pkg/request/hashrange" {
			continue // package client has its names
		}
		pkg, err := load.Import(module + path)
		require.NoError(t, err)
		lines := exported(pkg)
		used := withWhatTheyHave(usedInExamples(t, filepath.Join("..", "..", path)), lines)
		for _, line := range lines {
			what, _, _ := strings.Cut(line, " ")
			if (what == "type" || what == "func") && !used[nameOf(line)] {
				t.Errorf("%s.%s is in no example with an output: add it to one, or an Example%[2]s, in %s", pkg.Name(), nameOf(line), path)
			}
		}
	}
}

// usedInExamples returns the names that examples of a package use, whatever they are of.
func usedInExamples(t *testing.T, dir string) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, example := range doc.Examples(file) {
			if example.Output == "" && !example.EmptyOutput {
				continue
			}
			used[example.Name] = true
			ast.Inspect(example.Code, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					used[n.Sel.Name] = true
				case *ast.KeyValueExpr:
					if field, ok := n.Key.(*ast.Ident); ok {
						used[field.Name] = true
					}
				}
				return true
			})
		}
	}
	return used
}

var word = regexp.MustCompile(`\b[A-Z]\w*`)

// withWhatTheyHave adds the types of what is used.
func withWhatTheyHave(used map[string]bool, lines []string) map[string]bool {
	for more := true; more; {
		more = false
		for _, line := range lines {
			of, member, isMember := strings.Cut(nameOf(line), ".")
			if !used[of] || isMember && !used[member] || strings.HasPrefix(line, "type ") {
				continue
			}
			for _, name := range word.FindAllString(line, -1) {
				more = more || !used[name]
				used[name] = true
			}
		}
	}
	return used
}
