package apis

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestSystemExports checks that root exports the system APIs, and that their objects can also be accessed by identity.
func TestSystemExports(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	root := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t)
	identity := root.IdentityOf
	tenancy, shards, topology := identity("tenancy.kcp.io"), identity("shards.core.kcp.io"), identity("topology.kcp.io")

	// Wildcard requests with the identity return the same objects, on all shards.
	for _, shard := range []int{0, 1} {
		all := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: "*"}.ForTest(t)
		for _, resource := range []string{kit.TenancyPath + "workspaces:" + tenancy, kit.TenancyPath + "workspacetypes:" + tenancy, "/apis/core.kcp.io/v1alpha1/shards:" + shards, "/apis/topology.kcp.io/v1alpha1/partitions:" + topology} {
			plain, _, _ := strings.Cut(resource, ":")
			all.Eventually(resource+" returns the same objects as without the identity", func() bool {
				code, _ := all.TryDo(http.MethodGet, resource, "")
				if code != http.StatusOK {
					return false
				}
				before, by, after := uids(all, plain), uids(all, resource), uids(all, plain)
				if !slices.Equal(before, after) {
					return false // objects were created or deleted meanwhile
				}
				require.ElementsMatch(t, before, by)
				return true
			})
		}
		if shard == 0 {
			require.NotEmpty(t, uids(all, kit.TenancyPath+"workspacetypes:"+tenancy), "the shard of root has the types of root")
		}
		for _, none := range []string{"workspaces:" + shards, "workspaces:" + strings.Repeat("0", 64)} {
			all.RequireCode(http.StatusNotFound, http.MethodGet, kit.TenancyPath+none, "")
		}
		all.RequireCode(http.StatusNotFound, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters:"+tenancy, "") // built-in kinds have no identity
	}
	root.RequireCode(http.StatusNotFound, http.MethodGet, kit.TenancyPath+"workspaces:"+tenancy, "") // identities are for wildcard requests only

	for _, shard := range []int{0, 1} {
		known := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: "system:shard"}.ForTest(t)
		for _, hash := range []string{tenancy, shards, topology} {
			known.UntilShows("/api/v1/namespaces/default/configmaps/apiexport-identity-cache", hash)
		}
	}

	// If an export in root is deleted, it is restored with the same identity. Meanwhile its virtual workspace rejects requests, so it must
	// not be one that parallel tests use there.
	root.Delete(kit.APIsV1Alpha2 + "apiexports/topology.kcp.io")
	require.Equal(t, topology, identity("topology.kcp.io"))
}

// TestSystemBindings checks that a logical cluster has the system APIs that root exports only if it binds them.
func TestSystemBindings(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	parent := kit.NewWorkspaceClient(e, "system-bindings").ForTest(t).CreateWorkspaceOfType("team", "root:team", 0)
	parent.UntilReady()
	parent.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"bare"},"spec":{}}`)
	none := func(k kit.WorkspaceClient) {
		t.Helper()
		for _, path := range []string{kit.TenancyPath + "workspaces", kit.TenancyPath + "workspacetypes/a", kit.TenancyPath, "/apis/tenancy.kcp.io", topologyV1 + "partitions", shardsV1} {
			k.RequireCode(http.StatusNotFound, http.MethodGet, path, "")
		}
		k.RequireCode(http.StatusNotFound, http.MethodPost, kit.TenancyPath+"workspaces", kit.WorkspaceBody("no"))
		for _, document := range []string{"/apis", "/openapi/v3", "/openapi/v2"} {
			message := k.RequireCode(http.StatusOK, http.MethodGet, document, "")
			require.NotContains(t, message, "tenancy.kcp.io", document)
		}
	}
	for shard, name := range []string{"near", "far"} {
		all := parent.CreateWorkspaceOfType("all-"+name, "root:universal", shard)
		all.UntilReady()
		all.UntilDeleted(shardsV1)
		require.Empty(t, uids(all, kit.TenancyPath+"workspaces"))
		_, message := all.TryDo(http.MethodGet, "/apis", "")
		require.Contains(t, message, "tenancy.kcp.io")
		require.Contains(t, message, "topology.kcp.io")
		require.Len(t, bindingsByName(all), 2)
		require.Contains(t, fmt.Sprint(kit.Field(all.Get(kit.LogicalClusterPath), "metadata", "annotations", "internal.apis.kcp.io/resource-bindings")), `"workspaces.tenancy.kcp.io"`)
		all.Do(http.StatusForbidden, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"workspaces.tenancy.kcp.io"},"spec":{"group":"tenancy.kcp.io","scope":"Cluster","names":{"plural":"workspaces","singular":"workspace","kind":"Workspace","listKind":"WorkspaceList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)

		k := parent.CreateWorkspaceOfType("bare-"+name, "bare", shard)
		k.UntilReady()
		require.Empty(t, bindingsByName(k))
		none(k)
		k.Do(http.StatusNotFound, http.MethodGet, "/api/v1/namespaces/kube-system", "") // created by the type universal

		// A workspace that binds them has them, within the policy of root.
		owner := k.BindAdmin("user-3")
		bind := func() {
			owner.BindPath(http.StatusCreated, "tenancy", "root", "tenancy.kcp.io")
			k.UntilBinding("tenancy", "Ready", "True <nil>")
			owner.UntilCode(http.StatusOK, http.MethodGet, kit.TenancyPath+"workspaces", "")
		}
		bind()
		k.RequireCode(http.StatusNotFound, http.MethodGet, topologyV1+"partitions", "") // not bound
		owner.Create(kit.TenancyPath+"workspaces", "%s", kit.WorkspaceBody("child"))
		kit.UntilPhase(owner, kit.TenancyPath+"workspaces/child", "Ready")
		owner.Do(http.StatusForbidden, http.MethodPatch, kit.TenancyPath+"workspaces/child/status", `{"status":{"phase":"Unavailable"}}`)
		child := k
		child.ClusterName, _ = kit.Field(owner.Get(kit.TenancyPath+"workspaces/child"), "spec", "cluster").(string)
		child.Config = e.Shard(map[string]int{"root": 0, "shard-1": 1}[e.Placement(child.ClusterName)])
		k.BindPath(http.StatusCreated, "again", "root", "tenancy.kcp.io")
		k.UntilBinding("again", "InitialBindingCompleted", "False NamingConflicts")
		k.Delete(kit.APIsV1Alpha2 + "apibindings/again")

		// The provider reads them through the virtual workspace.
		vw := kit.WorkspaceClient{Env: parent.Env, Config: e.Shard(shard), ClusterName: "root"}.ThroughExport("tenancy.kcp.io", k.ClusterName)
		require.Equal(t, uids(k, kit.TenancyPath+"workspaces"), uids(vw, kit.TenancyPath+"workspaces"))

		// The deletion of the binding deletes the objects.
		k.Delete(kit.APIsV1Alpha2 + "apibindings/tenancy")
		k.Eventually("the binding is deleted and the API is not served", func() bool {
			code, _ := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/tenancy", "")
			served, _ := k.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
			return code == http.StatusNotFound && served == http.StatusNotFound
		})
		none(k)
		code, text := child.TryDo(http.MethodGet, kit.LogicalClusterPath, "")
		require.NotEqual(t, http.StatusOK, code, text)
		bind()
		require.Empty(t, uids(k, kit.TenancyPath+"workspaces"))
	}
	root := kit.WorkspaceClient{Env: parent.Env, Config: e.Shard(0), ClusterName: "root"}
	root.Eventually("root has the system APIs by bindings", func() bool {
		return kit.Field(root.Get(kit.LogicalClusterPath), "metadata", "annotations", "internal.shardplane.io/system-bindings") != nil
	})
	require.Len(t, uids(root, shardsV1), 2)
}

// TestSystemBindingsOfOldClusters checks that logical clusters of releases without bindings of system APIs get the bindings and keep their objects.
func TestSystemBindingsOfOldClusters(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for shard := range 2 {
		k := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: fmt.Sprintf("old-cluster-%d", shard)}.ForTest(t)
		k.Create("/apis/core.kcp.io/v1alpha1/logicalclusters", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster","finalizers":["core.kcp.io/logicalcluster-deletion"]}}`)
		k.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"kept"},"spec":{}}`)
		k.Eventually("the logical cluster has the bindings", func() bool {
			require.Len(t, uids(k, kit.TenancyPath+"workspacetypes"), 1)
			return kit.Field(k.Get(kit.LogicalClusterPath), "metadata", "annotations", "internal.shardplane.io/system-bindings") != nil
		})
		require.Len(t, bindingsByName(k), 2)
		for name, b := range bindingsByName(k) {
			require.Equal(t, "True <nil>", kit.Condition(b, "Ready"), name)
		}
		k.Eventually("only bound APIs are served", func() bool {
			require.Len(t, uids(k, kit.TenancyPath+"workspacetypes"), 1)
			code, _ := k.TryDo(http.MethodGet, shardsV1, "")
			return code == http.StatusNotFound
		})
		k.Delete(kit.LogicalClusterPath)
		k.Eventually("the objects of the logical cluster are deleted", func() bool {
			all := k.In("*")
			_, message := all.TryDo(http.MethodGet, kit.TenancyPath+"workspacetypes", "")
			return !strings.Contains(message, k.ClusterName)
		})
	}
}

const (
	topologyV1 = "/apis/topology.kcp.io/v1alpha1/"
	shardsV1   = "/apis/core.kcp.io/v1alpha1/shards"
)

// uids returns the UIDs of the objects in a LIST.
func uids(k kit.WorkspaceClient, path string) (all []string) {
	k.T.Helper()
	for _, item := range kit.Items(k.Get(path)) {
		all = append(all, string(item.GetUID()))
	}
	return all
}
