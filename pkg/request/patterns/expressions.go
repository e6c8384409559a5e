package patterns

import (
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// parser parses expressions without checking their types, so that it needs no declarations.
var parser = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.OptionalTypes())
})

// AddExpression adds the patterns of a CEL expression. Every constant string counts as one, because a pattern
// may reach matches() through a variable, or be concatenated. Nothing is added for an expression
// that is not valid, because it is never evaluated.
func (t *Total) AddExpression(expression string) error {
	env, err := parser()
	if err != nil {
		return err
	}
	parsed, issues := env.Parse(expression)
	if issues.Err() != nil {
		return nil //nolint:nilerr // its own validation reports it
	}
	ast.PreOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if err != nil {
			return
		}
		if pattern, ok := constant(e); ok {
			err = t.Add(pattern)
		}
	}))
	return err
}

// Excess returns the Total of the patterns of an expression, up to one that is too large. Expressions without braces and
// escape sequences are not parsed, because no pattern in them has many more instructions than characters.
func Excess(expression string) Total {
	var t Total
	if strings.ContainsAny(expression, `{\`) {
		_ = t.AddExpression(expression)
	}
	return t
}

// CheckExpression returns an error if a pattern in a CEL expression is too large.
func CheckExpression(expression string) error {
	var t Total
	return t.AddExpression(expression)
}

// constant returns the value of a constant string, or of constant strings that are concatenated.
func constant(e ast.Expr) (string, bool) {
	switch e.Kind() {
	case ast.LiteralKind:
		switch value := e.AsLiteral().Value().(type) {
		case string:
			return value, true
		case []byte: // for string()
			return string(value), true
		default:
			return "", false
		}
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Add || len(call.Args()) != 2 {
			return "", false
		}
		left, ok := constant(call.Args()[0])
		if !ok {
			return "", false
		}
		right, ok := constant(call.Args()[1])
		return left + right, ok
	default:
		return "", false
	}
}
