package frontproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/waitgroup"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/test/chaintest"
)

func TestWrongOptions(t *testing.T) {
	err := NewOptions().Complete().Validate()
	for _, flag := range []string{"--tls-cert-file", "--client-ca-file", "--root-kubeconfig", "--shard-ca-file", "--proxy-client-key-file"} {
		require.ErrorContains(t, err, flag+" is required")
	}
	w := newWorld(t, "root")
	for flag, breakIt := range map[string]func(*Options){
		"--bind-address":  func(o *Options) { o.Serving.BindAddress = "nonsense" },
		"--secure-port":   func(o *Options) { o.Serving.SecurePort = 70000 },
		"--index-timeout": func(o *Options) { o.IndexTimeout = time.Hour },
	} {
		o := *w.options
		breakIt(&o)
		_, err := NewFrontProxy(t.Context(), o.Complete())
		require.ErrorContains(t, err, flag)
	}
}

func TestFeatureGates(t *testing.T) {
	w := newWorld(t, "root")
	w.options.Serving.FeatureGates = features.Gates{string(features.AllShards): "false", string(features.WorkspaceMounts): "false"}
	w.child(t, "root", "a", "aaaa")
	w.shards["root"].admits("jane")
	w.ready(t, "root:a", "root")
	w.mount(t, "m", w.proxy.URL()+"/clusters/root:a")
	jane := w.person(t, "jane")
	jane.want(t, "/clusters/root:a/api", http.StatusOK)
	s := jane.fails(t, "/clusters/root:m/api", http.StatusServiceUnavailable)
	require.Contains(t, s.Message, "the feature gate WorkspaceMounts is disabled in the front-proxy")
	w.person(t, "admin", request.GroupAdmin).fails(t, "/clusters/*/api/v1/configmaps", http.StatusForbidden)

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
	require.Empty(t, warning(apierrors.NewBadRequest("a\r\nX-Header: b")), "the message is not a valid header value")
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
	}), m, &waitgroup.SafeWaitGroup{}, func(*http.Request, *record, time.Time) {})
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

func TestChain(t *testing.T) {
	chaintest.Documented(t, "front-proxy", (&handler{router: &router{}, health: &health{}}).chain())
}
