package patterns

import (
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var parser = sync.OnceValues(func() (*cel.Env, error) { return cel.NewEnv(cel.OptionalTypes()) })

// AddExpression adds the patterns of a CEL expression. All constant strings count, because a
// pattern may be passed to matches() through a variable, or be concatenated. Invalid expressions
// are ignored, because they are never evaluated.
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

// Excess returns the Total of an expression, up to the first pattern that is too large. Expressions without braces
// and escape sequences are not parsed, because their patterns cannot have large programs.
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

const origin = "patterns"

// Invalid returns the error for a field with a pattern or an expression that is too large.
func Invalid(path *field.Path, value string, err error) *field.Error {
	return field.Invalid(path, value, err.Error()).WithOrigin(origin)
}

// WithoutFormer removes errors about patterns and expressions that already existed before an
// update, in any field, because existing objects may exceed the limits. before returns the errors
// of the old object. It is only called if needed.
func WithoutFormer(errs field.ErrorList, before func() field.ErrorList) field.ErrorList {
	isLarge := func(err *field.Error) bool { return err.Origin == origin }
	if !slices.ContainsFunc(errs, isLarge) {
		return errs
	}
	former := sets.New[any]()
	for _, err := range before() {
		if isLarge(err) {
			former.Insert(err.BadValue)
		}
	}
	return slices.DeleteFunc(errs, func(err *field.Error) bool { return isLarge(err) && former.Has(err.BadValue) })
}
