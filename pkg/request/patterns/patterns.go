// Package patterns limits the regular expressions of tenants. A short pattern can have a large program: "a{0,1000}"
// repeated 100 times has 200,000 instructions, which use memory and may all be executed for each character. The cost
// model of CEL only considers the length of a pattern.
package patterns

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxSize is the maximum number of instructions of a pattern: x{0,1000} has 2,000. The maximum
	// in 141 definitions of eight well-known projects is 189.
	//
	//reference:limit object | regular expression: instructions (`x{0,1000}` has 2,000) | 422; CEL expressions fail
	MaxSize = 2500
	// MaxTotal is the maximum Total of an object. The maximum in these definitions is 456.
	//
	//reference:limit object | regular expressions of an object: instructions beyond their length | 422
	MaxTotal = 50_000

	// runesPerInstruction is how many bounds of character ranges use as much memory as an instruction.
	runesPerInstruction = 10
	// maxFolded is the last character with a variant in another case.
	//
	//reference:none
	maxFolded = 0x1E943
	// saturated is the size of larger programs. It prevents overflows.
	saturated = 1 << 30
)

var ignoresCase = regexp.MustCompile(`\(\?[msU]*i`)

// Size returns the number of instructions of a pattern, or 0 if it is invalid. It is computed from the syntax tree,
// because the program could use up to 128 MiB.
func Size(pattern string) int {
	if n := parsing(pattern); n > MaxSize {
		return n
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	return size(parsed)
}

// parsing returns the additional cost of parsing, in instructions. The parser adds the ranges of
// each Unicode class, and each character of a range that ignores case, before it merges them.
func parsing(pattern string) int {
	const perClass, charactersPerInstruction = 20, 200
	n := perClass * (strings.Count(pattern, `\p`) + strings.Count(pattern, `\P`))
	if !ignoresCase.MatchString(pattern) {
		return n
	}
	from := rune(0)
	for rest := pattern; rest != ""; {
		r, width := utf8.DecodeRuneInString(rest)
		rest = rest[width:]
		if r == '-' {
			to, _ := utf8.DecodeRuneInString(rest)
			if strings.HasPrefix(rest, `\x`) {
				to = maxFolded
			}
			n += max(0, int(min(to, maxFolded)-from)) / charactersPerInstruction
		}
		if from = r; r <= unicode.MaxASCII { // it may end an escape sequence
			from = 0
		}
	}
	return min(n, saturated)
}

func size(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass:
		n += len(re.Rune) / runesPerInstruction
	case syntax.OpCapture:
		n = 2
	case syntax.OpConcat:
		n = 0
	case syntax.OpAlternate:
		n = len(re.Sub) - 1
	default:
	}
	if re.Op == syntax.OpRepeat {
		return repeated(re, size(re.Sub[0]))
	}
	for _, sub := range re.Sub {
		n = min(n+size(sub), saturated)
	}
	return n
}

// repeated returns the size of x{min,max}, for which the compiler repeats x. A negative max means no limit.
func repeated(re *syntax.Regexp, once int) int {
	if re.Max < 0 {
		return min(max(re.Min, 1)*once+1, saturated)
	}
	return min(re.Min*once+(re.Max-re.Min)*(once+1), saturated)
}

func tooLarge(size, most int) error {
	return fmt.Errorf("the regular expression has a program of %d instructions, at most %d allowed: use fewer or smaller counted repetitions such as {0,1000}, or maxLength", size, most)
}

// ErrTotal is wrapped by the error for the pattern with which an object exceeds MaxTotal.
var ErrTotal = errors.New("all regular expressions together are too large")

// Total is the sum of the instructions of patterns minus their length, which is limited elsewhere.
type Total int

// Add adds a pattern. It returns an error if the pattern is too large, or if the sum has exceeded MaxTotal.
func (t *Total) Add(pattern string) error {
	n := Size(pattern)
	if n > MaxSize {
		return tooLarge(n, MaxSize)
	}
	before := *t
	*t += Total(max(0, n-len(pattern)))
	if before <= MaxTotal && *t > MaxTotal {
		return fmt.Errorf("%w with this one: their programs have %d instructions more than they have characters, at most %d allowed: use fewer or smaller counted repetitions", ErrTotal, *t, MaxTotal)
	}
	return nil
}

var parser = sync.OnceValues(func() (*cel.Env, error) { return cel.NewEnv(cel.OptionalTypes()) })

// AddExpression adds all constant strings of a CEL expression, because a pattern may be passed to matches() through
// a variable, or be concatenated. Invalid expressions are ignored.
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

// Excess returns the Total of an expression, up to the first pattern that is too large. Without braces and escape
// sequences, patterns cannot have large programs.
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

// WithoutFormer removes errors about patterns and expressions that already existed, in any field, before an update.
// before returns the errors of the old object, and is only called if needed.
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
