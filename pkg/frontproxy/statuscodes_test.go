package frontproxy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestStatusCodesAreDocumented compares docs/reference/status-codes.md with the errors that the sources of the
// front-proxy, and the functions of pkg/serving that it uses, create.
func TestStatusCodesAreDocumented(t *testing.T) {
	created := map[string]bool{}
	for pattern, functions := range map[string][]string{
		"*.go": nil, "../merge/*.go": nil,
		"../serving/scope.go": {"CheckWildcard", "notImplemented"}, "../serving/filters.go": {"LongPaths"},
	} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				collectStatusCodes(t, file, functions, created)
			}
		}
	}
	page, err := os.ReadFile("../../docs/reference/status-codes.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (\\d{3}) \\| (?:`(\\w+)` )?\\|").FindAllStringSubmatch(string(page), -1) {
		documented[row[1]+" "+row[2]] = true
	}
	require.Equal(t, slices.Sorted(maps.Keys(created)), slices.Sorted(maps.Keys(documented)))
}

// collectStatusCodes adds the codes and reasons of the errors that the functions in a file create, or all if there
// are none.
func collectStatusCodes(t *testing.T, file string, functions []string, created map[string]bool) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, declaration := range parsed.Decls {
		if function, ok := declaration.(*ast.FuncDecl); functions != nil && (!ok || !slices.Contains(functions, function.Name.Name)) {
			continue
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if status := createdStatus(t, call); status != "" {
					created[status] = true
				}
			}
			return true
		})
	}
}

// createdStatus returns the code and the reason of the error that a call creates, or an empty string.
func createdStatus(t *testing.T, call *ast.CallExpr) string {
	t.Helper()
	pkg, name := selected(call.Fun)
	switch {
	case pkg == "apierrors" && strings.HasPrefix(name, "New"):
		require.Contains(t, upstreamErrors, name)
		status := upstreamErrors[name].ErrStatus
		return strconv.Itoa(int(status.Code)) + " " + string(status.Reason)
	case pkg == "http" && name == "Error" || name == "statusError" || name == "StatusError":
	default:
		return ""
	}
	code, reason := "", ""
	for _, argument := range call.Args {
		switch pkg, name := selected(argument); {
		case pkg == "http" && strings.HasPrefix(name, "Status"):
			code = strconv.Itoa(statusCode(t, name))
		case pkg == "metav1":
			reason = strings.TrimPrefix(name, "StatusReason")
		}
	}
	if code == "" { // a variable
		return ""
	}
	return code + " " + reason
}

var upstreamErrors = map[string]*apierrors.StatusError{
	"NewBadRequest":         apierrors.NewBadRequest(""),
	"NewForbidden":          apierrors.NewForbidden(schema.GroupResource{}, "", nil),
	"NewInternalError":      apierrors.NewInternalError(http.ErrAbortHandler),
	"NewInvalid":            apierrors.NewInvalid(schema.GroupKind{}, "", nil),
	"NewResourceExpired":    apierrors.NewResourceExpired(""),
	"NewServiceUnavailable": {ErrStatus: metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable}},
	"NewUnauthorized":       apierrors.NewUnauthorized(""),
}

// selected returns the parts of an expression such as http.StatusOK, or the name alone.
func selected(e ast.Expr) (pkg, name string) {
	switch e := e.(type) {
	case *ast.Ident:
		return "", e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name, e.Sel.Name
		}
	}
	return "", ""
}

// statusCode returns the value of a constant of net/http, which is named after the text of the code.
func statusCode(t *testing.T, constant string) int {
	t.Helper()
	for code := http.StatusBadRequest; code <= http.StatusNetworkAuthenticationRequired; code++ {
		if text := http.StatusText(code); text != "" && "Status"+strings.NewReplacer(" ", "", "-", "").Replace(text) == constant {
			return code
		}
	}
	require.Fail(t, "unknown code", constant)
	return 0
}
