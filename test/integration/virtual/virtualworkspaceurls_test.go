package virtual

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testVirtualWorkspaceURLs checks that shards and the front-proxy describe valid URLs of virtual workspaces in responses to invalid ones.
// TestVirtualWorkspaces of pkg/request covers segments that are missing, escaped or invalid.
func testVirtualWorkspaceURLs(t *testing.T, e *kit.Env) {
	provider, identity, consumers := kit.ConsumersOf(t, e, "urls", 1)
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

// testVirtualWorkspaceAcrossShards checks that each shard serves the virtual workspace of an export for its consumers, and that the rules
// of the provider apply on all shards.
func testVirtualWorkspaceAcrossShards(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "serving-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "served-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	k.BindPathReady("e", "root:serving-provider", "e")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"a"}}`)
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)

	byName, byPath := kit.WorkspaceClient{Env: k.Env, Config: k.Config, ClusterName: provider.ClusterName}.ThroughExport("e", "*"), kit.WorkspaceClient{Env: k.Env, Config: k.Config, ClusterName: "root:serving-provider"}.ThroughExport("e", k.ClusterName)
	stranger := byName.As("user-1-token")
	require.Contains(t, stranger.RequireCode(http.StatusForbidden, http.MethodGet, "/apis/example.org/v1/widgets", ""), kit.NotPermitted)
	provider.Allow("content", "user-1", `{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["get","list"]}`)
	for _, vw := range []kit.WorkspaceClient{byName, byPath, stranger, byPath.As("user-1-token")} {
		vw.UntilCode(http.StatusOK, http.MethodGet, "/apis/example.org/v1/widgets", "")
		vw.UntilShows("/api/v1/configmaps", `"name":"a"`)
		require.Contains(t, fmt.Sprint(vw.Get("/apis/example.org/v1").Object), "widgets")
	}
	testVirtualWorkspaceThroughFrontProxy(t, e, provider, k)
	byPath.As("user-1-token").RequireCode(http.StatusForbidden, http.MethodDelete, kit.WidgetsPath+"/a", "")

	// The required groups of the provider's logical cluster apply on other shards.
	for _, groups := range []struct {
		required string
		code     int
	}{{"team-2", http.StatusForbidden}, {"team-1", http.StatusOK}, {"team-2", http.StatusForbidden}} {
		provider.Patch(kit.LogicalClusterPath, `{"metadata":{"annotations":{"authorization.kcp.io/required-groups":"`+groups.required+`"}}}`)
		text := stranger.UntilCode(groups.code, http.MethodGet, "/apis/example.org/v1/widgets", "")
		require.Equal(t, groups.code == http.StatusForbidden, strings.Contains(text, kit.NotPermitted), text)
	}
	byName.Get("/apis/example.org/v1/widgets")
}

// testVirtualWorkspaceThroughFrontProxy checks that a provider that can only reach the front-proxy uses the virtual workspaces there, at
// the URLs in its endpoint slice: with lists, watches and discovery of all consumers of a shard, and all verbs in one logical cluster.
func testVirtualWorkspaceThroughFrontProxy(t *testing.T, e *kit.Env, provider, k kit.WorkspaceClient) {
	k.Eventually("the endpoint slice contains the URL of the front-proxy", func() bool {
		endpoints := kit.Field(provider.Get(kit.APIsV1Alpha1+"apiexportendpointslices/e"), "status", "endpoints")
		return fmt.Sprint(endpoints) == fmt.Sprintf("[map[url:%s/shards/root/services/apiexport/%s/e]]", e.Proxy().Host, provider.ClusterName)
	})
	on := func(shard, cluster string) kit.WorkspaceClient {
		through := kit.WorkspaceClient{Env: k.Env, Config: e.Proxy(), ClusterName: provider.ClusterName}.ThroughExport("e", cluster)
		through.PathPrefix = "/shards/" + shard + through.PathPrefix
		return through
	}
	const widgets = "/apis/example.org/v1/widgets"
	for _, through := range []kit.WorkspaceClient{on("root", "*"), on("root", "*").As("user-1-token")} {
		require.Contains(t, fmt.Sprint(through.Get("/apis/example.org/v1").Object), "widgets")
		require.Contains(t, fmt.Sprint(through.Get(widgets).Object), "kcp.io/cluster:"+k.ClusterName)
	}
	message := on("root", "*").RequireCode(http.StatusOK, http.MethodGet, widgets+"?watch=true&timeoutSeconds=1", "")
	require.Contains(t, message, `"type":"ADDED"`)
	require.NotContains(t, fmt.Sprint(on("shard-1", "*").Get(widgets).Object), k.ClusterName, "each shard serves its own consumers")
	require.Contains(t, fmt.Sprint(on("shard-1", k.ClusterName).Get("/apis/example.org/v1").Object), "widgets", "requests for one logical cluster are forwarded to its shard")
	on("root", k.ClusterName).Create(kit.WidgetsPath, "%s", kit.Widget("through-the-front-proxy", "size", 1))
	stranger := "user-2-token"
	require.Contains(t, requireRefusal(t, widgets, on("none", "*").As(stranger), on("root", "*").As(stranger), on("shard-1", "*").As(stranger)), kit.NotPermitted)
}
