package reference

import (
	"fmt"
	"go/ast"
	"go/constant"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Limit is a limit that the code declares.
type Limit struct {
	// Scope is the object of which there is a maximum, e.g. request or user.
	Scope string
	What  string
	// Value is the maximum. It is empty if Flag contains it.
	Value string
	// Flag is the flag without dashes, or limit:<name> for a name of --limit.
	Flag string
	// Annotation overrides the flag.
	Annotation string
	Exceeded   string
}

// limitPackages contain limits of requests and objects. All constants with names of limits must have a directive.
var (
	limitPackages = regexp.MustCompile(`^pkg/(admission|apis|authn|authz|bindings|frontproxy|request|serving|tenancy|virtual)(/|$)`)
	limitName     = regexp.MustCompile(`^[mM]ax[A-Z]\w*$`)
)

// Limits returns the limits that the product declares. Comments contain a directive for each of them:
//
//	//reference:limit <scope> [--<flag>] [@<annotation>] [=<value>] | <what> | <if exceeded>
//
// The directives in the comment of a constant apply to its values in their order. Directives with a flag may be in
// any comment. Constants that are not limits have the directive //reference:none.
func Limits(t testing.TB, source Source) (all []Limit) {
	t.Helper()
	for dir, pkg := range source {
		for _, file := range pkg.Files {
			declared := map[*ast.CommentGroup]*ast.ValueSpec{}
			for spec, doc := range specs(file) {
				if doc != nil {
					declared[doc] = spec
				}
				if verb, _ := firstDirective(doc); verb == "" && limitPackages.MatchString(dir) && pkg.isLimit(file, spec) {
					t.Errorf("%s: %s must have a comment with //reference:limit or //reference:none, for docs/reference/limits.md", dir, spec.Names[0].Name)
				}
			}
			limits, err := pkg.limits(file, declared)
			if err != nil {
				t.Errorf("%s: %v", dir, err)
			}
			all = append(all, limits...)
		}
	}
	return all
}

// limits returns the limits of all comments of a file.
func (p *Package) limits(file *ast.File, declared map[*ast.CommentGroup]*ast.ValueSpec) (all []Limit, err error) {
	for _, group := range file.Comments {
		for i, text := range limitDirectives(group) {
			l, err := p.limit(file, declared[group], i, text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", text, err)
			}
			all = append(all, l)
		}
	}
	return all, nil
}

func limitDirectives(group *ast.CommentGroup) (texts []string) {
	for verb, text := range directives(group) {
		if verb == "limit" {
			texts = append(texts, text)
		}
	}
	return texts
}

// isLimit reports whether a specification declares a number with the name of a limit.
func (p *Package) isLimit(file *ast.File, spec *ast.ValueSpec) bool {
	for i, name := range spec.Names {
		if limitName.MatchString(name.Name) && i < len(spec.Values) {
			v, err := p.evaluate(file, spec.Values[i])
			return err == nil && v.Kind() == constant.Int
		}
	}
	return false
}

func (p *Package) limit(file *ast.File, spec *ast.ValueSpec, at int, text string) (Limit, error) {
	parts := strings.Split(text, " | ")
	if len(parts) != 3 {
		return Limit{}, fmt.Errorf("%d parts, 3 expected", len(parts))
	}
	l := Limit{What: parts[1], Exceeded: parts[2]}
	head, value, given := strings.Cut(parts[0], " =")
	for word := range strings.FieldsSeq(head) {
		switch {
		case strings.HasPrefix(word, "--"):
			l.Flag = word[2:]
		case strings.HasPrefix(word, "@"):
			l.Annotation = word[1:]
		default:
			l.Scope = word
		}
	}
	switch {
	case given:
		l.Value = value
	case l.Flag != "":
	case spec == nil || at >= len(spec.Values):
		return Limit{}, errNotConstant
	default:
		var err error
		if l.Value, err = p.show(file, spec.Values[at]); err != nil {
			return Limit{}, err
		}
	}
	return l, nil
}

// show formats a number, a size in bytes, a duration, or several of them in a struct.
func (p *Package) show(file *ast.File, expr ast.Expr) (string, error) {
	if composite, ok := expr.(*ast.CompositeLit); ok {
		var fields []string
		for _, element := range composite.Elts {
			field, ok := element.(*ast.KeyValueExpr)
			if !ok {
				return "", errNotConstant
			}
			value, err := p.show(file, field.Value)
			if err != nil {
				return "", err
			}
			name, _ := field.Key.(*ast.Ident)
			fields = append(fields, strings.ToLower(name.Name)+" "+value)
		}
		return strings.Join(fields, ", "), nil
	}
	v, err := p.evaluate(file, expr)
	if err != nil {
		return "", err
	}
	n, _ := constant.Int64Val(v)
	kind := ""
	ast.Inspect(expr, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.Ident:
			if node.Name == "time" {
				kind = "duration"
			}
		case *ast.BinaryExpr:
			if node.Op.String() == "<<" {
				kind = "bytes"
			}
		}
		return true
	})
	switch kind {
	case "duration":
		return Duration(time.Duration(n)), nil
	case "bytes":
		return Bytes(n), nil
	default:
		return Number(n), nil
	}
}

// Duration formats a duration, e.g. 2 min.
func Duration(d time.Duration) string {
	switch {
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d >= time.Second && d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	default:
		return fmt.Sprintf("%d ms", d/time.Millisecond)
	}
}

// Bytes formats a size in bytes, e.g. 64 KiB.
func Bytes(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if size := int64(1) << (30 - 10*i); n >= size && n%(size/4) == 0 {
			return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", float64(n)/float64(size)), "0"), ".") + " " + unit
		}
	}
	return fmt.Sprintf("%s bytes", Number(n))
}

// Number formats a number, e.g. 10,000.
func Number(n int64) string {
	digits := []byte(fmt.Sprint(n))
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = slices.Insert(digits, i, ',')
	}
	return string(digits)
}
