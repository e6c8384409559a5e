package shard_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/shard"
)

// TestStarting: until a shard has read its logical clusters, requests to them get 503 with a delay, whether they
// exist or not. Requests without a logical cluster are served. That the shard's own requests are served is shown by every
// shard that becomes ready.
func TestStarting(t *testing.T) {
	s, err := shard.NewShard(t.Context(), options(t).Complete())
	require.NoError(t, err)
	t.Cleanup(s.Close)
	_, err = s.OwnVersion("m1.any")
	require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	_, later := apierrors.SuggestsClientDelay(err)
	require.True(t, later, "%v", err)
	for path, code := range map[string]int{
		"/clusters/root:team/api/v1/namespaces":                             http.StatusServiceUnavailable,
		"/clusters/root/api/v1/namespaces":                                  http.StatusServiceUnavailable,
		"/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/team":       http.StatusServiceUnavailable,
		"/clusters/root:team/readyz":                                        http.StatusServiceUnavailable,
		"/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters":             http.StatusServiceUnavailable,
		"/services/apiexport/root:team/export/clusters/*/api/v1/configmaps": http.StatusServiceUnavailable,
		"/clusters/root:team/metrics":                                       http.StatusNotImplemented,
		"/clusters/Root/api/v1/namespaces":                                  http.StatusBadRequest,
		"/version":                                                          http.StatusOK,
	} {
		t.Run(path, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.Header.Set("Authorization", "Bearer "+s.Loopback().BearerToken)
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			require.Equal(t, code, w.Code, "%s", w.Body)
			assert.Equal(t, code == http.StatusServiceUnavailable, w.Header().Get("Retry-After") == "1")
		})
	}
}
