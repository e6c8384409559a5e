package frontproxy

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/chaintest"
	"github.com/shardplane/shardplane/pkg/serving/features"
)

func TestWrongOptions(t *testing.T) {
	err := NewOptions().Complete().Validate()
	for _, flag := range []string{"--tls-cert-file", "--client-ca-file", "--root-kubeconfig", "--shard-ca-file", "--proxy-client-key-file"} {
		require.ErrorContains(t, err, flag+" is required")
	}
	w := newWorld(t, "root")
	garbage := w.dir + "/garbage"
	require.NoError(t, os.WriteFile(garbage, []byte("garbage"), 0o600))
	for flag, breakIt := range map[string]func(*Options, string){
		"--tls-cert-file":          func(o *Options, f string) { o.Serving.TLSCertFile = f },
		"--client-ca-file":         func(o *Options, f string) { o.Authentication.ClientCAFile = f },
		"--root-kubeconfig":        func(o *Options, f string) { o.RootKubeconfig = f },
		"--shard-ca-file":          func(o *Options, f string) { o.ShardCAFile = f },
		"--shard-client-cert-file": func(o *Options, f string) { o.ShardClientCertFile = f },
		"--proxy-client-cert-file": func(o *Options, f string) { o.ProxyClientCertFile = f },
	} {
		for _, file := range []string{garbage, w.dir + "/missing"} {
			o := *w.options
			breakIt(&o, file)
			_, err := New(t.Context(), o.Complete())
			require.ErrorContains(t, err, flag, file)
		}
	}
	for flag, breakIt := range map[string]func(*Options){
		"--bind-address":  func(o *Options) { o.Serving.BindAddress = "nonsense" },
		"--secure-port":   func(o *Options) { o.Serving.SecurePort = 70000 },
		"--index-timeout": func(o *Options) { o.IndexTimeout = time.Hour },
	} {
		o := *w.options
		breakIt(&o)
		_, err := New(t.Context(), o.Complete())
		require.ErrorContains(t, err, flag)
	}
	first, err := New(t.Context(), w.options.Complete())
	require.NoError(t, err)
	defer first.Close()
	o := *w.options
	o.Serving.SecurePort = first.serving.Listener.Addr().(*net.TCPAddr).Port
	_, err = New(t.Context(), o.Complete())
	require.ErrorContains(t, err, "--secure-port")
}

// TestFeatureGates checks the responses if a feature is disabled.
func TestFeatureGates(t *testing.T) {
	w := newWorld(t, "root")
	w.options.Serving.FeatureGates = features.Gates{string(features.AllShards): "false", string(features.WorkspaceMounts): "false"}
	w.cluster(t, "root", "aaaa")
	w.workspace(t, "root", "root", "a", "aaaa")
	w.members("jane")
	w.ready(t)
	w.knows(t, "root:a", "root")
	w.mount(t, "m", w.proxy.URL()+"/clusters/root:a")
	jane := w.person(t, "jane")
	res, body := jane.get(t, "/clusters/root:a/api")
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	res, body = jane.get(t, "/clusters/root:m/api")
	status(t, res, body, http.StatusServiceUnavailable)
	require.Contains(t, body, "the feature gate WorkspaceMounts is disabled in the front-proxy")
	res, body = w.person(t, "admin", request.GroupAdmin).get(t, "/clusters/*/api/v1/configmaps")
	status(t, res, body, http.StatusForbidden)

	o := NewOptions()
	o.Serving.FeatureGates = features.Gates{"WatchList": "true", "Unknown": "true"}
	require.ErrorContains(t, o.Complete().Validate(), "--feature-gates: the front-proxy has no features Unknown, WatchList")
	require.True(t, NewOptions().Complete().Authentication.Workspaces.Enabled)
	o.Serving.FeatureGates = features.Gates{string(features.WorkspaceAuthentication): "false"}
	require.False(t, o.Complete().Authentication.Workspaces.Enabled)
}

// TestWarnings checks that there is a warning if kubectl does not show the message.
func TestWarnings(t *testing.T) {
	warning := func(err *apierrors.StatusError) string {
		w := httptest.NewRecorder()
		writeStatus(w, err)
		return w.Header().Get("Warning")
	}
	for path, warned := range map[string]bool{
		"/api": true, "/apis/example.com/v1": true, "/openapi/v3": true, "/version": true, "/": true,
		"/apis/authentication.k8s.io/v1/selfsubjectreviews":      true,
		"/api/v1/namespaces/default/configmaps/x":                false,
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/clusters/x"+path, nil)
		got := warning(forbidden(r, path))
		require.Equal(t, warned, got != "", "%s: %s", path, got)
		if warned {
			require.Equal(t, `299 - "`+authz.NotPermittedReason+`"`, got)
		}
	}
	require.Equal(t, `299 - "bad path"`, warning(apierrors.NewBadRequest("bad path")))
	require.Equal(t, `299 - "not in *"`, warning(statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, 0, "not in *")))
	require.Empty(t, warning(apierrors.NewBadRequest("a\r\nX-Header: b")), "it is no header")
	require.Empty(t, warning(apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "configmaps"}, "create")), "shown for resources")
	require.Empty(t, warning(apierrors.NewForbidden(schema.GroupResource{}, "", nil)), "for another reason")
	require.Empty(t, warning(apierrors.NewNotFound(schema.GroupResource{}, "x")))
}

// TestCodesOfTenants checks that invalid codes, e.g. of tenants' webhooks, share a label.
func TestCodesOfTenants(t *testing.T) {
	m := newMetrics(nil)
	const shard = "of-codes"
	code := 0
	handler := withAccounting(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recordFrom(r.Context()).shard = shard
		w.WriteHeader(code)
	}), m, &tracker{}, func(*http.Request, *record, time.Time) {})
	for _, code = range []int{200, 403, 460, 461, 498, statusClientClosed, 599} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	}
	counts := map[string]float64{}
	for _, code := range []string{"200", "403", "499", "other"} {
		counts[code] = testutil.ToFloat64(m.requestsTotal.WithLabelValues(shard, code))
	}
	require.Equal(t, 4, testutil.CollectAndCount(m.requestsTotal))
	require.Equal(t, map[string]float64{"200": 1, "403": 1, "499": 1, "other": 4}, counts)
}

// TestChain checks that docs/chains.md is up to date.
func TestChain(t *testing.T) {
	chaintest.Documented(t, "front-proxy", (&handler{router: &router{}, health: &health{}}).chain())
}
