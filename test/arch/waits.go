package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

// pauses are files of tests that may sleep, with the reason. They must not expect that something happened meanwhile.
var pauses = map[string]string{
	"contrib/examples_test.go":                 "between two reads of a state",
	"pkg/cacheserver/replication_test.go":      "between two reads of a state",
	"pkg/replication/push/modelserver_test.go": "a slow server, in the bubble of model_test.go",
	"pkg/frontproxy/hide_test.go":              "a slow shard",
	"test/conformance/versions_test.go":        "a slow webhook",
	"pkg/reconcile/ring_test.go":               "slow work",
}

// waitsIn returns the lines in which a file only sleeps. Other events may happen in a select, and a bubble does not wait for real time.
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

func checkWaits(t *Tree) []string {
	var bad []string
	for _, file := range t.files() {
		for _, line := range file.Waits {
			if file.Test && pauses[file.Name] == "" {
				bad = append(bad, fmt.Sprintf("%s:%d waits for time.After", file.Name, line))
			}
		}
	}
	return bad
}
