package reference

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

const module = "github.com/shardplane/shardplane/"

// Source is the code of the product without tests, by directory relative to the root.
type Source map[string]*Package

// Package is the code of a package.
type Package struct {
	Dir   string
	Files []*ast.File

	source Source
	values map[string]value
}

type value struct {
	file *ast.File
	expr ast.Expr
}

var testDirectory = regexp.MustCompile(`(test|/testdata|/generated/openapi)$`)

// Load parses pkg and cmd.
func Load(t testing.TB) Source {
	t.Helper()
	source, files, root := Source{}, token.NewFileSet(), Root(t)
	for _, top := range []string{"cmd", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && testDirectory.MatchString(path) {
				return filepath.SkipDir
			}
			if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			dir = filepath.ToSlash(dir)
			if source[dir] == nil {
				source[dir] = &Package{Dir: dir, source: source, values: map[string]value{}}
			}
			source[dir].add(file)
			return nil
		}))
	}
	return source
}

func (p *Package) add(file *ast.File) {
	p.Files = append(p.Files, file)
	for spec := range specs(file) {
		for i, name := range spec.Names {
			if i < len(spec.Values) {
				p.values[name.Name] = value{file, spec.Values[i]}
			}
		}
	}
}

// specs yields the declarations of constants and variables outside and inside of functions, with their comments.
func specs(file *ast.File) func(func(*ast.ValueSpec, *ast.CommentGroup) bool) {
	return func(yield func(*ast.ValueSpec, *ast.CommentGroup) bool) {
		ast.Inspect(file, func(n ast.Node) bool {
			declared, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range declared.Specs {
				if spec, ok := spec.(*ast.ValueSpec); ok {
					doc := spec.Doc
					if doc == nil && len(declared.Specs) == 1 {
						doc = declared.Doc
					}
					if !yield(spec, doc) {
						return false
					}
				}
			}
			return true
		})
	}
}

var majorVersion = regexp.MustCompile(`/v[0-9]+$`)

// importPath returns the path of the import with a name in a file.
func importPath(file *ast.File, name string) string {
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		if spec.Name != nil && spec.Name.Name == name || spec.Name == nil && filepath.Base(majorVersion.ReplaceAllString(path, "")) == name {
			return path
		}
	}
	return ""
}

// known are constants of other modules.
var known = map[string]constant.Value{
	"time.Millisecond": constant.MakeInt64(int64(time.Millisecond)), "time.Second": constant.MakeInt64(int64(time.Second)),
	"time.Minute": constant.MakeInt64(int64(time.Minute)), "time.Hour": constant.MakeInt64(int64(time.Hour)),
	"http.DefaultMaxHeaderBytes": constant.MakeInt64(1 << 20), "celconfig.PerCallLimit": constant.MakeInt64(celconfig.PerCallLimit),
}

var errNotConstant = errors.New("not a constant")

// evaluate returns the value of a constant expression.
func (p *Package) evaluate(file *ast.File, expr ast.Expr) (constant.Value, error) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0), nil
	case *ast.ParenExpr:
		return p.evaluate(file, e.X)
	case *ast.CallExpr: // a conversion
		if _, ok := e.Fun.(*ast.Ident); ok && len(e.Args) == 1 {
			return p.evaluate(file, e.Args[0])
		}
	case *ast.BinaryExpr:
		x, err := p.evaluate(file, e.X)
		if err != nil {
			return nil, err
		}
		y, err := p.evaluate(file, e.Y)
		if err != nil {
			return nil, err
		}
		if e.Op == token.SHL || e.Op == token.SHR {
			shift, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(shift)), nil
		}
		if e.Op == token.QUO && x.Kind() == constant.Int && y.Kind() == constant.Int {
			return constant.BinaryOp(x, token.QUO_ASSIGN, y), nil // division of integers
		}
		return constant.BinaryOp(x, e.Op, y), nil
	case *ast.Ident:
		if v, ok := p.values[e.Name]; ok {
			return p.evaluate(v.file, v.expr)
		}
	case *ast.SelectorExpr:
		if pkg, ok := e.X.(*ast.Ident); ok {
			if v, ok := known[pkg.Name+"."+e.Sel.Name]; ok {
				return v, nil
			}
			dir, ok := strings.CutPrefix(importPath(file, pkg.Name), module)
			if other := p.source[dir]; ok && other != nil {
				return other.evaluate(file, e.Sel)
			}
		}
	}
	return nil, fmt.Errorf("%T: %w", expr, errNotConstant)
}

// text returns the value of a constant string.
func (p *Package) text(file *ast.File, expr ast.Expr) (string, bool) {
	v, err := p.evaluate(file, expr)
	if err != nil || v.Kind() != constant.String {
		return "", false
	}
	return constant.StringVal(v), true
}

var (
	verb    = regexp.MustCompile(`^(?:is|are|limits?|contains?) (?:the |a |an )?`)
	mention = regexp.MustCompile(`^\S*[a-z.][A-Z.]`)
)

// description returns a comment without the name of the constant at its start.
func description(doc string) string {
	_, rest, _ := strings.Cut(doc, " ")
	rest = verb.ReplaceAllString(rest, "")
	if rest == "" || mention.MatchString(rest) {
		return rest
	}
	return strings.ToUpper(rest[:1]) + rest[1:]
}
