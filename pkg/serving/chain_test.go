package serving_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// omitted are the filters of upstream's chain that ours does not contain.
var omitted = map[string]string{
	"WithPriorityAndFairness":            "package fairness shares a shard among logical clusters with this filter",
	"WithMaxInFlightLimit":               "unlike this filter, ledger.Executing does not count requests that wait for a webhook",
	"WithCORS":                           "no option allows origins",
	"WithHSTS":                           "no option sets directives",
	"WithProbabilisticGoaway":            "no option sets the probability",
	"WithRetryAfter":                     "no server shuts down with Retry-After",
	"WithWatchTerminationDuringShutdown": "LongRunningStop ends watches",
	"WithMuxAndDiscoveryComplete":        "no request is served before all handlers are installed",
}

// TestUpstreamsFilters checks that the chains contain each filter of upstream's default chain, or
// list a reason, so that filters of new versions are noticed.
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
		_, out := omitted[name]
		require.NotEqual(t, out, strings.Contains(string(own), "."+name), "%s must be either in the chain or in omitted", name)
	}
	for name := range omitted {
		require.True(t, seen[name], "%s is no longer a filter of upstream's chain", name)
	}
}

// TestChainOrder checks that requests pass through the enabled filters in the order of the list.
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
	chain := serving.Chain{filter("a"), {Name: "off", Description: "nothing"}, filter("b")}
	chain.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = append(passed, "served") })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	require.Equal(t, []string{"a", "b", "served"}, passed)
	require.Equal(t, []string{"a", "does", "a", "off", "nothing", "b", "does", "b"}, strings.Fields(chain.String()))
}

// TestAccessAuthorizedHeader checks that the access header is set only in responses after authorization, and that no
// handler can set it.
func TestAccessAuthorizedHeader(t *testing.T) {
	for name, tc := range map[string]struct {
		authorize func(r *http.Request)
		want      string
	}{
		"denied":                         {func(*http.Request) {}, "false"},
		"authorized":                     {func(r *http.Request) { request.AccessAuthorized(r.Context()) }, "true"},
		"authorized for another cluster": {func(r *http.Request) { request.AccessAuthorized(request.WithClusterName(r.Context(), "b")) }, "false"},
		"header of the client":           {func(r *http.Request) { r.Header.Set(request.AccessAuthorizedHeader, "true") }, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := serving.WithAccessHeader(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tc.authorize(r)
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(request.WithClusterName(t.Context(), "a"), http.MethodGet, "/", http.NoBody))
			require.Equal(t, []string{tc.want}, w.Result().Header.Values(request.AccessAuthorizedHeader))
		})
	}
}

// TestResponsesAtTheDeadline checks that a handler can complete its response when its context ends, and that a request
// whose handler does not respond gets 504.
func TestResponsesAtTheDeadline(t *testing.T) {
	c := newConfig()
	c.RequestTimeout = 500 * time.Millisecond
	c.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(c)
	c.LongRunningFunc = func(*http.Request, *apirequest.RequestInfo) bool { return false }
	release := make(chan struct{})
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			<-release
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		<-r.Context().Done()
		_, _ = io.WriteString(w, "too late")
	})
	for _, filter := range slices.Backward(serving.AuthenticationFilters(c)) {
		if slices.Contains([]string{"request info", "deadline", "timeout"}, filter.Name) {
			handler = filter.Wrap(handler)
		}
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	for path, want := range map[string]int{"/responds": http.StatusServiceUnavailable, "/hangs": http.StatusGatewayTimeout} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err, path)
		_, err = io.ReadAll(response.Body)
		require.NoError(t, err, "%s: the response is incomplete", path)
		require.NoError(t, response.Body.Close())
		require.Equal(t, want, response.StatusCode, path)
	}
}

// TestHeadersCount checks that requests and watches with large headers count several times, because
// headers stay in memory.
func TestHeadersCount(t *testing.T) {
	c := newConfig()
	c.LongRunningFunc = func(_ *http.Request, info *apirequest.RequestInfo) bool { return info.Verb == "watch" }
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

// outcome is the request that the innermost handler received, or the Status of a filter.
type outcome struct {
	code    int
	cluster string
	path    string
	status  metav1.Status
}

// sendScoped sends a request through both filters.
func sendScoped(t *testing.T, method, url, userName string) outcome {
	t.Helper()
	resolve := func(path logicalcluster.Path) (logicalcluster.Name, bool) { return "abc", path.String() == "root:team" }
	inactive := func(name logicalcluster.Name) bool { return name == "asleep" }

	var got outcome
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := request.ClusterFrom(r.Context()); ok {
			got.cluster = c.String()
		}
		got.path = r.URL.Path
		w.WriteHeader(http.StatusOK)
	}))
	mounted := func(path logicalcluster.Path) (string, bool) {
		return map[string]string{"root:mount": "https://elsewhere"}[path.String()], strings.HasPrefix(path.String(), "root:mount")
	}
	scopes := serving.Scopes{
		Mounts: []*request.Mount{request.Clusters}, Resolve: resolve, Mounted: mounted, Inactive: inactive, Codecs: newCodecs(),
	}
	handler = scopes.Find(withRequestInfo(withUser(scopes.Rules(handler), userName)))

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, url, http.NoBody))
	got.code = w.Code
	if w.Code != http.StatusOK {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got.status), "an error must be a Status: %s", w.Body)
		require.Equal(t, w.Code, int(got.status.Code))
		require.NotEmpty(t, got.status.Message)
	}
	return got
}

func withRequestInfo(next http.Handler) http.Handler {
	return genericapifilters.WithRequestInfo(next, &apirequest.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	})
}

func withUser(next http.Handler, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), &user.DefaultInfo{Name: name})))
	})
}

func TestScopes(t *testing.T) {
	for _, tc := range []struct {
		name, method, url, user string
		code                    int
		cluster, path, message  string
	}{
		{name: "invalid UTF-8", url: "/clusters/abc/%c0%ae/api", code: 400, message: "not valid UTF-8"},
		{name: "invalid UTF-8 outside of a logical cluster", url: "/%ff", code: 400, message: "not valid UTF-8"},
		{name: "name", url: "/clusters/abc/api/v1/configmaps", code: 200, cluster: "abc", path: "/api/v1/configmaps"},
		{name: "system name", url: "/clusters/system:admin/api", code: 200, cluster: "system:admin", path: "/api"},
		{name: "resolved path", url: "/clusters/root:team/version", code: 200, cluster: "abc", path: "/version"},
		{name: "bare logical cluster", url: "/clusters/abc", code: 200, cluster: "abc", path: "/"},
		{name: "unresolved path", url: "/clusters/root:missing/api", code: 404, message: `workspaces.tenancy.kcp.io "root:missing" not found`},
		{name: "mount", url: "/clusters/root:mount/api", code: 503, message: "root:mount is a mount of https://elsewhere, which is only available through the front-proxy"},
		{name: "mount without a URL", url: "/clusters/root:mounted/api", code: 503, message: "the mount root:mounted is not available"},
		{name: "malformed", url: "/clusters/UPPER/api", code: 400, message: "UPPER"},
		{name: "nested", url: "/clusters/a1/clusters/b1/api", code: 404, message: "logical clusters cannot be nested"},
		{name: "metrics", url: "/clusters/abc/metrics", code: 501, message: "an endpoint of the process"},
		{name: "SLI metrics", url: "/clusters/abc/metrics/slis", code: 501, message: "an endpoint of the process"},
		{name: "profiles", url: "/clusters/abc/debug/pprof/heap", code: 501, message: "an endpoint of the process"},
		{name: "metrics of the wildcard", url: "/clusters/*/metrics", code: 501, message: "an endpoint of the process"},
		{name: "probe", url: "/clusters/abc/readyz", code: 200, cluster: "abc", path: "/readyz"},
		{name: "no cluster", url: "/api/v1/namespaces", code: 400, message: "/clusters/<name>"},
		{name: "no cluster, no resource", url: "/healthz", code: 200, path: "/healthz"},
		{name: "wildcard list", url: "/clusters/*/api/v1/configmaps", code: 200, cluster: "*", path: "/api/v1/configmaps"},
		{name: "wildcard watch", url: "/clusters/*/api/v1/configmaps?watch=1", code: 200, cluster: "*", path: "/api/v1/configmaps"},
		{name: "wildcard get", url: "/clusters/*/api/v1/namespaces/a/configmaps/b", code: 405, message: "`*` logical cluster"},
		{name: "wildcard create", method: http.MethodPost, url: "/clusters/*/api/v1/namespaces", code: 405, message: "`*` logical cluster"},
		{name: "wildcard deletecollection", method: http.MethodDelete, url: "/clusters/*/api/v1/configmaps", code: 405, message: "`*` logical cluster"},
		{name: "wildcard discovery", url: "/clusters/*/apis", code: 405, message: "`*` logical cluster"},
		{name: "inactive", url: "/clusters/asleep/api/v1/configmaps", code: 403, message: "inactive"},
		{name: "inactive, discovery", url: "/clusters/asleep/apis", code: 403, message: "inactive"},
		{name: "inactive, openapi", url: "/clusters/asleep/openapi/v3", code: 200, cluster: "asleep", path: "/openapi/v3"},
		{name: "inactive, logicalcluster", url: "/clusters/asleep/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", code: 200, cluster: "asleep", path: "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"},
		{name: "inactive, the server itself", user: user.APIServerUser, url: "/clusters/asleep/api/v1/configmaps", code: 200, cluster: "asleep", path: "/api/v1/configmaps"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := sendScoped(t, cmp.Or(tc.method, http.MethodGet), tc.url, tc.user)
			require.Equal(t, tc.code, got.code, got.status.Message)
			require.Equal(t, tc.cluster, got.cluster)
			require.Equal(t, tc.path, got.path)
			require.Contains(t, got.status.Message, tc.message)
		})
	}
}

// TestUnknownGrantor checks that an error of ResolveGrantor is the response before authorization,
// which would deny the request.
func TestUnknownGrantor(t *testing.T) {
	scopes := serving.Scopes{
		Mounts:  request.ShardMounts(),
		Resolve: func(logicalcluster.Path) (logicalcluster.Name, bool) { return "", false },
		ResolveGrantor: func(logicalcluster.Path, *request.Mount, string) (logicalcluster.Name, error) {
			return "", request.Unavailable("not all exports are loaded yet")
		},
		Codecs: newCodecs(),
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/services/apiexport/root:provider/export/clusters/*/api", http.NoBody)
	scopes.Find(http.NotFoundHandler()).ServeHTTP(w, r)
	require.Equal(t, http.StatusServiceUnavailable, w.Code, "%s", w.Body)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

func newCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	return serializer.NewCodecFactory(scheme)
}

// TestUndecided checks that errors of the authorizer with a delay become the response, once, that
// timeouts become 504, and that allowed requests are served with an unchanged ResponseWriter.
func TestUndecided(t *testing.T) {
	later := apierrors.NewServiceUnavailable("not all objects are loaded yet")
	later.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 7}
	failed := errors.New("disk failure")
	for name, tc := range map[string]struct {
		timeout  time.Duration
		decision authorizer.Decision
		err      error
		want     int
	}{
		"allowed":                     {time.Minute, authorizer.DecisionAllow, nil, http.StatusOK},
		"allowed with an error":       {time.Minute, authorizer.DecisionAllow, later, http.StatusOK},
		"denied":                      {time.Minute, authorizer.DecisionDeny, nil, http.StatusForbidden},
		"unknown":                     {time.Minute, authorizer.DecisionNoOpinion, later, http.StatusServiceUnavailable},
		"unknown, among other errors": {time.Minute, authorizer.DecisionNoOpinion, errors.Join(failed, fmt.Errorf("lookup: %w", later)), http.StatusServiceUnavailable},
		"failed":                      {time.Minute, authorizer.DecisionNoOpinion, failed, http.StatusInternalServerError},
		"failed with a status":        {time.Minute, authorizer.DecisionNoOpinion, apierrors.NewNotFound(schema.GroupResource{}, "x"), http.StatusInternalServerError},
		"timeout":                     {0, authorizer.DecisionNoOpinion, fmt.Errorf("lookup: %w", context.DeadlineExceeded), http.StatusGatewayTimeout},
		"denied at the deadline":      {0, authorizer.DecisionDeny, nil, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig()
			calls := 0
			c.Authorization.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				calls++
				return tc.decision, "", tc.err
			})
			w := httptest.NewRecorder()
			handler := serving.Decision(c).Handler(http.HandlerFunc(func(served http.ResponseWriter, _ *http.Request) {
				assert.Same(t, w, served)
			}))
			ctx, cancel := context.WithTimeout(t.Context(), tc.timeout)
			defer cancel()
			ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: "jane"})
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods"})
			handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
			require.Equal(t, tc.want, w.Code)
			require.Equal(t, 1, calls)
			if tc.want != http.StatusServiceUnavailable {
				require.Empty(t, w.Header().Get("Retry-After"))
				return
			}
			require.Equal(t, "7", w.Header().Get("Retry-After"))
			require.Equal(t, []string{"application/json"}, w.Header().Values("Content-Type"))
			var status metav1.Status
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "%s", w.Body)
			require.Equal(t, metav1.StatusReasonServiceUnavailable, status.Reason)
			require.Equal(t, "not all objects are loaded yet", status.Message)
		})
	}
}

// TestUndecidedImpersonation checks that an error of the authorizer with a delay also becomes the
// response to an impersonation, once, unless another check permits it. Other denials remain 403.
func TestUndecidedImpersonation(t *testing.T) {
	for name, tc := range map[string]struct {
		// unknown and allowed are the verbs for which the authorizer returns an error, or which it permits.
		unknown, allowed string
		constrained      bool
		want             int
	}{
		"unknown":                               {unknown: "impersonate", want: http.StatusServiceUnavailable},
		"denied":                                {want: http.StatusForbidden},
		"allowed":                               {allowed: "impersonate", want: http.StatusOK},
		"constrained, unknown":                  {constrained: true, unknown: "impersonate", want: http.StatusServiceUnavailable},
		"constrained, denied":                   {constrained: true, want: http.StatusForbidden},
		"constrained, allowed by another verb":  {constrained: true, unknown: "impersonate-on:user-info:get", allowed: "impersonate", want: http.StatusOK},
		"constrained, denied for another verb":  {constrained: true, unknown: "impersonate-on:user-info:get", want: http.StatusServiceUnavailable},
		"constrained, unknown after permission": {constrained: true, unknown: "impersonate:user-info", allowed: "impersonate-on:user-info:get", want: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			gate := utilfeature.DefaultFeatureGate.DeepCopy()
			require.NoError(t, gate.SetFromMap(map[string]bool{string(features.ConstrainedImpersonation): tc.constrained}))
			c := newConfig()
			c.FeatureGate = gate
			c.Authorization.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				switch {
				case a.GetVerb() == tc.unknown:
					return authorizer.DecisionNoOpinion, "", request.Unavailable("not all objects are loaded yet")
				case a.GetVerb() == tc.allowed, a.GetUser().GetName() == "bob":
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
			ctx := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"})
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods"})
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
			r.Header.Set("Impersonate-User", "bob")
			w := httptest.NewRecorder()
			serving.Decision(c).Handler(http.HandlerFunc(func(served http.ResponseWriter, r *http.Request) {
				subject, _ := apirequest.UserFrom(r.Context())
				assert.Equal(t, "bob", subject.GetName())
				_, _ = served.Write([]byte("served"))
			})).ServeHTTP(w, r)
			require.Equal(t, tc.want, w.Code, "%s", w.Body)
			switch tc.want {
			case http.StatusOK:
				require.Equal(t, "served", w.Body.String())
			case http.StatusServiceUnavailable:
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				var status metav1.Status
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "%s", w.Body)
				require.Equal(t, "not all objects are loaded yet", status.Message)
			}
		})
	}
}

func newConfig() *genericapiserver.Config {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
	c.FeatureGate = utilfeature.DefaultFeatureGate
	return c
}
