package frontproxy

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/features"
)

// TestFeatureGates holds what is answered without a feature.
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
	require.Contains(t, body, "the feature gate WorkspaceMounts of the front-proxy is off")
	res, body = w.person(t, "admin", request.GroupAdmin).get(t, "/clusters/*/api/v1/configmaps")
	status(t, res, body, http.StatusForbidden)

	o := NewOptions()
	o.Serving.FeatureGates = features.Gates{"WatchList": "true", "Unknown": "true"}
	require.ErrorContains(t, o.Complete().Validate(), "--feature-gates: the front-proxy has no features Unknown, WatchList")
	require.True(t, NewOptions().Complete().Authentication.Workspaces.Enabled)
	o.Serving.FeatureGates = features.Gates{string(features.WorkspaceAuthentication): "false"}
	require.False(t, o.Complete().Authentication.Workspaces.Enabled)
}
