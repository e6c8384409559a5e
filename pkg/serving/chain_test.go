package serving_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// leftOut are the filters of upstream's chain that ours have not.
var leftOut = map[string]string{
	"WithPriorityAndFairness":            "package fairness shares a shard among logical clusters with this filter",
	"WithMaxInFlightLimit":               "package inflight does not count what waits for a webhook, which this filter would",
	"WithCORS":                           "no option allows origins",
	"WithHSTS":                           "no option sets directives",
	"WithProbabilisticGoaway":            "no option sets the chance",
	"WithRetryAfter":                     "no server shuts down with Retry-After",
	"WithWatchTerminationDuringShutdown": "LongRunningStop ends watches",
	"WithMuxAndDiscoveryComplete":        "nothing is served before everything is installed",
}

// TestUpstreamsFilters holds that the chains have each filter of upstream's
// default chain, or a reason not to: one that a new version brings is noticed.
func TestUpstreamsFilters(t *testing.T) {
	own, err := os.ReadFile("chain.go")
	require.NoError(t, err)
	upstream, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "k8s.io/apiserver/pkg/server").Output()
	require.NoError(t, err)
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(upstream)), "config.go"), nil, 0)
	require.NoError(t, err)
	seen := map[string]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok {
			return f.Name.Name == "DefaultBuildHandlerChain"
		}
		if s, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "With") {
			seen[s.Sel.Name] = true
		}
		return true
	})
	require.Greater(t, len(seen), 15)
	for name := range seen {
		_, out := leftOut[name]
		require.NotEqual(t, out, strings.Contains(string(own), "."+name), "%s is in the chain, or left out for a reason", name)
	}
	for name := range leftOut {
		require.True(t, seen[name], "%s is no filter of upstream's any more", name)
	}
}

// TestChainOrder holds that requests pass filters in the order of the list, and
// not those that are switched off.
func TestChainOrder(t *testing.T) {
	var passed []string
	filter := func(name string) serving.Filter {
		return serving.NewFilter(name, "does "+name, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				passed = append(passed, name)
				next.ServeHTTP(w, r)
			})
		})
	}
	chain := serving.Chain{filter("a"), {Name: "off", Does: "nothing"}, filter("b")}
	chain.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = append(passed, "served") })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	require.Equal(t, []string{"a", "b", "served"}, passed)
	require.Equal(t, []string{"a", "does", "a", "off", "nothing", "b", "does", "b"}, strings.Fields(chain.String()))
}

// TestEntry holds that answers are marked when they were given after entering, and
// that nothing that comes in between can say so.
func TestEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		enters func(r *http.Request)
		want   string
	}{
		"refused":                    {func(*http.Request) {}, "false"},
		"entered":                    {func(r *http.Request) { request.AccessAuthorized(r.Context()) }, "true"},
		"entered another cluster":    {func(r *http.Request) { request.AccessAuthorized(request.WithClusterName(r.Context(), "b")) }, "false"},
		"the client says that it is": {func(r *http.Request) { r.Header.Set(request.AccessAuthorizedHeader, "true") }, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := serving.WithEntry(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tc.enters(r)
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(request.WithClusterName(t.Context(), "a"), http.MethodGet, "/", http.NoBody))
			require.Equal(t, []string{tc.want}, w.Result().Header.Values(request.AccessAuthorizedHeader))
		})
	}
}

// TestHeadersCount holds that requests and watches with large headers, which are in memory as long as these last,
// take more of what a user has.
func TestHeadersCount(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := &genericapiserver.Config{
		Serializer:      serializer.NewCodecFactory(scheme),
		LongRunningFunc: func(_ *http.Request, info *apirequest.RequestInfo) bool { return info.Verb == "watch" },
	}
	limits := ledger.Limits{ledger.RequestsPerUser: 2, ledger.WatchesPerUser: 2}
	handler := serving.Chain{serving.RequestLimits(c, limits, nil), serving.WatchLimits(c, limits, nil)}.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, verb := range []string{"get", "watch"} {
		for bytes, want := range map[int]int{0: http.StatusOK, 31 << 10: http.StatusOK, 33 << 10: http.StatusTooManyRequests} {
			ctx := apirequest.WithUser(request.WithClusterName(t.Context(), "a"), &user.DefaultInfo{Name: "jane"})
			r := httptest.NewRequestWithContext(apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{Verb: verb}), http.MethodGet, "/", http.NoBody)
			r.Header.Set("X-Long", strings.Repeat("x", bytes))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			require.Equal(t, want, w.Code, "%s with %d bytes", verb, bytes)
		}
	}
}
