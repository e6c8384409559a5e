package reference

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Metric is a declared metric.
type Metric struct {
	Name, Type, Help string
	Labels           []string
	// Library is set for metrics of the public library.
	Library bool
}

var (
	metricName   = regexp.MustCompile(`^shardplane_[a-z_]+$`)
	constructor  = regexp.MustCompile(`^New(Desc|Counter|Gauge|Histogram|Summary)(Vec|Func)?$`)
	instrumented = regexp.MustCompile(`^(\[[A-Z]+\] )`)
)

// Metrics returns all metrics that are declared by functions of the packages prometheus and instruments. It reports an
// error if a name is not a string literal.
func Metrics(t testing.TB, source Source) []Metric {
	t.Helper()
	var all []Metric
	for dir, pkg := range source {
		if dir == "pkg/instruments" {
			continue
		}
		for _, file := range pkg.Files {
			for call, kind := range constructors(file) {
				m, ok := pkg.metric(file, call)
				if !ok {
					t.Errorf("%s: the name and help of a metric must be literals, for docs/reference/metrics.md", dir)
					continue
				}
				m.Type = kind
				if kind == "desc" {
					m.Type = "gauge"
					if strings.HasSuffix(m.Name, "_total") {
						m.Type = "counter"
					}
				}
				m.Library = dir == "pkg/client" || strings.HasPrefix(dir, "pkg/client/")
				all = append(all, m)
			}
		}
	}
	return all
}

// constructors returns the calls that create metrics, with the types of these.
func constructors(file *ast.File) map[*ast.CallExpr]string {
	calls := map[*ast.CallExpr]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if function, ok := call.Fun.(*ast.SelectorExpr); ok {
			if kind := constructor.FindStringSubmatch(function.Sel.Name); kind != nil {
				calls[call] = strings.ToLower(kind[1])
			}
		}
		return true
	})
	return calls
}

// metric reads the name, the help, which follows it, and the labels, which are the other strings.
func (p *Package) metric(file *ast.File, call *ast.CallExpr) (Metric, bool) {
	var texts []string
	labels := map[string]bool{}
	var read func(n ast.Node) bool
	read = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.BasicLit); ok && key.Kind == token.STRING { // of prometheus.Labels
				texts = append(texts, unquoted(key))
				return false
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				texts = append(texts, unquoted(n))
			}
		case *ast.Ident:
			if composite := literal(file, n.Name); composite != nil && !labels[n.Name] {
				labels[n.Name] = true
				ast.Inspect(composite, read)
			}
		}
		return true
	}
	for _, arg := range call.Args {
		ast.Inspect(arg, read)
	}
	at := slices.IndexFunc(texts, metricName.MatchString)
	if at < 0 {
		return Metric{}, false
	}
	m := Metric{Name: texts[at]}
	for _, text := range slices.Delete(texts, at, at+1) {
		if strings.Contains(text, " ") || strings.HasSuffix(text, ".") {
			m.Help = instrumented.ReplaceAllString(text, "")
		} else {
			m.Labels = append(m.Labels, text)
		}
	}
	return m, m.Help != ""
}

// literal returns the labels that a variable of the file contains.
func literal(file *ast.File, name string) (found *ast.CompositeLit) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if len(n.Names) == 1 && n.Names[0].Name == name && len(n.Values) == 1 {
				found, _ = n.Values[0].(*ast.CompositeLit)
			}
		case *ast.AssignStmt:
			if target, ok := n.Lhs[0].(*ast.Ident); ok && target.Name == name && len(n.Rhs) == 1 {
				found, _ = n.Rhs[0].(*ast.CompositeLit)
			}
		}
		return found == nil
	})
	return found
}

func unquoted(literal *ast.BasicLit) string {
	text, _ := strconv.Unquote(literal.Value)
	return text
}
