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

// TestExamples checks that each public type and function is used in an example with checked output. A type is used by its name, or by a
// function, method or field of this type.
func TestExamples(t *testing.T) {
	load := loader(t)
	for _, path := range public {
		if path == "pkg/request/hashrange" {
			continue // aliased in pkg/client
		}
		pkg, err := load.Import(module + path)
		require.NoError(t, err)
		lines := exported(pkg)
		used := withTypes(usedInExamples(t, filepath.Join("..", "..", path)), lines)
		for _, line := range lines {
			kind, _, _ := strings.Cut(line, " ")
			if (kind == "type" || kind == "func") && !used[nameOf(line)] {
				t.Errorf("%s.%s is not used in an example with output: add it to one, or an Example%[2]s, in %s", pkg.Name(), nameOf(line), path)
			}
		}
	}
}

// usedInExamples returns the names in examples of a package.
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

// withTypes adds the types in the declarations of used names.
func withTypes(used map[string]bool, lines []string) map[string]bool {
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
