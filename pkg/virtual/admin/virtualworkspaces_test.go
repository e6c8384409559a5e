package admin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/admin"
)

// TestVerbs: unsupported verbs get 405, and other resources 404. Until the Shards are loaded, supported verbs get 503
// with a delay.
func TestVerbs(t *testing.T) {
	factory, err := client.NewFactory(clienttest.New(t, kinds.Scheme).ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	shards := kinds.Shards.Informer(factory.Wildcard(), client.InformerOptions[*corev1alpha1.Shard]{})
	handler := admin.NewAdminVirtualWorkspace(admin.Config{Shards: shards})(http.NotFoundHandler())
	for verb, method := range map[string]string{
		"list": http.MethodGet, "watch": http.MethodGet, "get": http.MethodGet,
		"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete, "deletecollection": http.MethodDelete,
	} {
		info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: "core.kcp.io", APIVersion: "v1alpha1", Resource: "shards"}
		path := "/apis/core.kcp.io/v1alpha1/shards"
		switch verb {
		case "watch":
			path += "?watch=true"
		case "get", "update", "patch", "delete":
			info.Name, path = "root", path+"/root"
		}
		ctx := apirequest.WithRequestInfo(request.WithScope(t.Context(), request.Scope{Mount: request.Admin}), info)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, http.NoBody))
		if method == http.MethodGet {
			require.Equal(t, http.StatusServiceUnavailable, w.Code, "%s: %s", verb, w.Body)
			require.Equal(t, "1", w.Header().Get("Retry-After"), verb)
			continue
		}
		require.Equal(t, http.StatusMethodNotAllowed, w.Code, "%s: %s", verb, w.Body)
		require.Contains(t, w.Body.String(), verb+" is not supported on resources of kind", verb)
	}

	info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Resource: "configmaps"}
	ctx := apirequest.WithRequestInfo(request.WithScope(t.Context(), request.Scope{Mount: request.Admin}), info)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/configmaps", http.NoBody))
	require.Equal(t, http.StatusNotFound, w.Code, w.Body)
	require.Contains(t, w.Body.String(), "only shards of core.kcp.io/v1alpha1, discovery and OpenAPI are served here")
}
