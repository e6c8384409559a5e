package apis

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testVirtualWorkspaceURLs checks that shards and the front-proxy describe valid URLs of virtual workspaces in responses to invalid ones.
// TestVirtualWorkspaces of pkg/request covers segments that are missing, escaped or invalid.
func testVirtualWorkspaceURLs(t *testing.T, e *kit.Env) {
	provider, identity, consumers := consumersOf(t, e, "urls", 1)
	k := consumers[0]
	const (
		after, below, granted, name = "the URL of a virtual workspace must continue with /clusters/", "invalid URL segment", "the logical cluster of a virtual workspace must be", "the name of the object that grants access"
		apis                        = "/apis/example.org/v1/"
	)
	vws, ofE := "/services/apiexport/", "/services/apiexport/"+provider.ClusterName+"/e/clusters/"
	for path, message := range map[string]string{
		vws:                                  below,
		vws + provider.ClusterName:           name,
		ofE[:len(ofE)-len("clusters/")]:      after,
		vws + "*/e/clusters/*/apis":          granted,
		ofE + "*:" + k.ClusterName + "/apis": below,
	} {
		for _, config := range []*rest.Config{provider.Config, e.Proxy()} {
			status := kit.RequireStatus(t, config, kit.Request{Path: path}, http.StatusBadRequest)
			require.Contains(t, status.Message, message, "%s of %s", path, config.Host)
		}
	}
	for path, want := range map[string]struct {
		code    int
		message string
	}{
		ofE + k.ClusterName + "/clusters/" + k.ClusterName + "/api": {http.StatusNotFound, "logical clusters cannot be nested"},
		ofE + k.ClusterName + "/metrics":                            {http.StatusNotImplemented, ""},
		vws + "root:nowhere/e/clusters/*/apis":                      {http.StatusNotFound, "root:nowhere"},
		vws + provider.ClusterName + "/none/clusters/*/apis":        {http.StatusNotFound, "apiexports.apis.kcp.io \"none\" not found"},
		ofE + "root:nowhere" + apis + "widgets":                     {http.StatusForbidden, "no APIBinding"},
		ofE + "nowhere" + apis + "widgets":                          {http.StatusForbidden, "no APIBinding"},
		ofE + provider.ClusterName + apis + "widgets":               {http.StatusForbidden, "no APIBinding"},
		ofE + "*" + apis + "widgets:0":                              {http.StatusNotFound, "the APIExport e neither offers widgets:0.example.org"},
		ofE + "*" + apis + "widgets:" + identity:                    {http.StatusNotFound, "the APIExport e neither offers widgets:"},
		ofE + "*" + apis + "gadgets":                                {http.StatusNotFound, "the APIExport e neither offers gadgets.example.org nor has a permission claim to list it"},
		ofE + k.ClusterName + apis + "widgets:" + identity:          {http.StatusForbidden, "no APIBinding"},
		ofE + k.ClusterName + apis + "gadgets":                      {http.StatusForbidden, "no APIBinding"},
	} {
		status := kit.RequireStatus(t, provider.Config, kit.Request{Path: path}, want.code)
		require.Contains(t, status.Message, want.message, path)
	}
	for _, path := range []string{ofE + k.ClusterName, "/services/apiexport/root:urls-provider/e/clusters/root:urls-0", ofE + "*"} {
		kit.RequireCode(t, provider.Config, kit.Request{Path: path + apis + "widgets"}, http.StatusOK)
	}
}
