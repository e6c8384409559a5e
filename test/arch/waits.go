package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

// pauses are the files of tests in which something takes its time on purpose, with the reason.
// Nothing is expected of what happens meanwhile.
var pauses = map[string]string{
	"contrib/examples_test.go":                        "between two looks at a state",
	"pkg/cacheserver/replication_test.go":             "between two looks at a state",
	"pkg/replication/push/modelserver_test.go": "a server that is slow, in the bubble of model_test.go",
	"pkg/frontproxy/hide_test.go":                     "a shard that is slow",
	"test/conformance/versions_test.go":               "a webhook that is slow",
	"pkg/reconcile/ring_test.go":                      "work that takes time",
}

// waitsIn returns the lines at which a file does nothing but wait for time to pass. Where
// there is a select, something else may happen. In a bubble time passes when nothing else can
// happen.
func waitsIn(file *ast.File, set *token.FileSet) []int {
	for _, imported := range file.Imports {
		if path, err := strconv.Unquote(imported.Path.Value); err == nil && strings.HasSuffix(path, "/test/bubble") {
			return nil
		}
	}
	selected := map[ast.Stmt]bool{}
	var lines []int
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			selected[n.Comm] = true
		case *ast.ExprStmt:
			if receive, ok := n.X.(*ast.UnaryExpr); ok && !selected[n] && receive.Op == token.ARROW && isTimeAfter(receive.X) {
				lines = append(lines, set.Position(n.Pos()).Line)
			}
		}
		return true
	})
	return lines
}

func isTimeAfter(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "After" {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

// checkWaits finds tests that wait for time.
func checkWaits(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		for _, file := range pkg.Files {
			if !file.Test || pauses[file.Name] != "" {
				continue
			}
			for _, line := range file.Waits {
				bad = append(bad, fmt.Sprintf("%s:%d waits for time.After", file.Name, line))
			}
		}
	}
	return bad
}
