package serving_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

// answer is what the innermost handler saw, or the Status that a filter wrote.
type answer struct {
	code    int
	cluster string
	path    string
	status  metav1.Status
}

// ask sends a request through both filters as a server assembles them.
func ask(t *testing.T, method, url, userName string) answer {
	t.Helper()
	codecs := newCodecs()
	resolve := func(path logicalcluster.Path) (logicalcluster.Name, bool) {
		return "abc", path.String() == "root:team"
	}
	inactive := func(name logicalcluster.Name) bool { return name == "asleep" }

	var got answer
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
	scopes := serving.Scopes{Mounts: []*request.Mount{request.Clusters}, Resolve: resolve, Mounted: mounted, Inactive: inactive, Codecs: codecs}
	handler = scopes.Rules(handler)
	handler = withUser(handler, userName)
	handler = genericapifilters.WithRequestInfo(handler, &apirequest.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	})
	handler = scopes.Find(handler)

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
		{name: "path that is no text", url: "/clusters/abc/%c0%ae/api", code: 400, message: "not valid UTF-8"},
		{name: "path that is no text, of the process", url: "/%ff", code: 400, message: "not valid UTF-8"},
		{name: "name", url: "/clusters/abc/api/v1/configmaps", code: 200, cluster: "abc", path: "/api/v1/configmaps"},
		{name: "system name", url: "/clusters/system:admin/api", code: 200, cluster: "system:admin", path: "/api"},
		{name: "resolved path", url: "/clusters/root:team/version", code: 200, cluster: "abc", path: "/version"},
		{name: "bare logical cluster", url: "/clusters/abc", code: 200, cluster: "abc", path: "/"},
		{name: "unresolved path", url: "/clusters/root:nobody/api", code: 404, message: `workspaces.tenancy.kcp.io "root:nobody" not found`},
		{name: "mount", url: "/clusters/root:mount/api", code: 503, message: "root:mount is a mount of https://elsewhere, to which the front-proxy leads"},
		{name: "mount to nowhere", url: "/clusters/root:mounted/api", code: 503, message: "root:mounted is a mount that leads nowhere now"},
		{name: "malformed", url: "/clusters/UPPER/api", code: 400, message: "UPPER"},
		{name: "nested", url: "/clusters/a1/clusters/b1/api", code: 404, message: "no logical clusters below"},
		{name: "metrics", url: "/clusters/abc/metrics", code: 501, message: "serving process"},
		{name: "metrics of slis", url: "/clusters/abc/metrics/slis", code: 501, message: "serving process"},
		{name: "profiles", url: "/clusters/abc/debug/pprof/heap", code: 501, message: "serving process"},
		{name: "metrics as a wildcard", url: "/clusters/*/metrics", code: 501, message: "serving process"},
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
			method := tc.method
			if method == "" {
				method = http.MethodGet
			}
			got := ask(t, method, tc.url, tc.user)
			require.Equal(t, tc.code, got.code, got.status.Message)
			require.Equal(t, tc.cluster, got.cluster)
			require.Equal(t, tc.path, got.path)
			require.Contains(t, got.status.Message, tc.message)
		})
	}
}

// TestUnknownGrantor: an error of ResolveGrantor is the response before authorization, which would deny the request.
func TestUnknownGrantor(t *testing.T) {
	scopes := serving.Scopes{
		Mounts:  request.ShardMounts(),
		Resolve: func(logicalcluster.Path) (logicalcluster.Name, bool) { return "", false },
		ResolveGrantor: func(logicalcluster.Path, *request.Mount, string) (logicalcluster.Name, error) {
			return "", request.Unavailable("not all exports are known yet")
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
