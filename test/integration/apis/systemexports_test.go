package apis

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestSystemExports: root exports the kinds of the system, whose identities are other names of
// the same objects.
func TestSystemExports(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	root := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t)
	identity := root.IdentityOf
	tenancy, shards, topology := identity("tenancy.kcp.io"), identity("shards.core.kcp.io"), identity("topology.kcp.io")

	// The identity is a name of the same objects, for wildcards on all shards.
	for _, shard := range []int{0, 1} {
		all := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: "*"}.ForTest(t)
		for _, resource := range []string{kit.TenancyPath + "workspaces:" + tenancy, kit.TenancyPath + "workspacetypes:" + tenancy, "/apis/core.kcp.io/v1alpha1/shards:" + shards, "/apis/topology.kcp.io/v1alpha1/partitions:" + topology} {
			plain, _, _ := strings.Cut(resource, ":")
			all.Eventually(resource+" answers as without the identity", func() bool {
				code, _ := all.TryDo(http.MethodGet, resource, "")
				if code != http.StatusOK {
					return false
				}
				before, by, after := uids(all, plain), uids(all, resource), uids(all, plain)
				if !slices.Equal(before, after) {
					return false // somebody makes or deletes some
				}
				require.ElementsMatch(t, before, by)
				return true
			})
		}
		if shard == 0 {
			require.NotEmpty(t, uids(all, kit.TenancyPath+"workspacetypes:"+tenancy), "those of root are on its shard")
		}
		for _, none := range []string{"workspaces:" + shards, "workspaces:" + strings.Repeat("0", 64)} {
			code, _ := all.TryDo(http.MethodGet, kit.TenancyPath+none, "")
			require.Equal(t, http.StatusNotFound, code, none)
		}
		code, _ := all.TryDo(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters:"+tenancy, "")
		require.Equal(t, http.StatusNotFound, code, "what every logical cluster has by itself has no identity")
	}
	code, _ := root.TryDo(http.MethodGet, kit.TenancyPath+"workspaces:"+tenancy, "")
	require.Equal(t, http.StatusNotFound, code, "logical clusters know no identities")

	for _, shard := range []int{0, 1} {
		known := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: "system:shard"}.ForTest(t)
		known.Eventually("the shard tells the identities", func() bool {
			_, says := known.TryDo(http.MethodGet, "/api/v1/namespaces/default/configmaps/apiexport-identity-cache", "")
			return strings.Contains(says, tenancy) && strings.Contains(says, shards) && strings.Contains(says, topology)
		})
	}

	// What somebody deletes in root comes back, with the same identity.
	root.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apiexports/tenancy.kcp.io", "")
	require.Equal(t, tenancy, identity("tenancy.kcp.io"))
}

// TestSystemBindings: a logical cluster has the kinds of the system that root exports only if
// it binds them.
func TestSystemBindings(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	parent := createChild(kit.NewWorkspaceClient(e, "system-bindings").ForTest(t), "team", "root:team")
	parent.UntilReady()
	parent.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"bare"},"spec":{}}`)
	none := func(k kit.WorkspaceClient) {
		t.Helper()
		for _, path := range []string{kit.TenancyPath + "workspaces", kit.TenancyPath + "workspacetypes/a", kit.TenancyPath, "/apis/tenancy.kcp.io", topologyV1 + "partitions", shardsV1} {
			code, says := k.TryDo(http.MethodGet, path, "")
			require.Equal(t, http.StatusNotFound, code, "%s: %s", path, says)
		}
		code, _ := k.TryDo(http.MethodPost, kit.TenancyPath+"workspaces", workspaceBody("no"))
		require.Equal(t, http.StatusNotFound, code)
		for _, document := range []string{"/apis", "/openapi/v3", "/openapi/v2"} {
			code, says := k.TryDo(http.MethodGet, document, "")
			require.Equal(t, http.StatusOK, code)
			require.NotContains(t, says, "tenancy.kcp.io", document)
		}
	}
	for shard, name := range []string{"near", "far"} {
		all := parent.CreateChildOn(shard, "all-"+name, "root:universal")
		all.UntilReady()
		all.Eventually("it has only what it binds: shards are in root", func() bool {
			code, _ := all.TryDo(http.MethodGet, shardsV1, "")
			return code == http.StatusNotFound
		})
		require.Empty(t, uids(all, kit.TenancyPath+"workspaces"))
		_, says := all.TryDo(http.MethodGet, "/apis", "")
		require.Contains(t, says, "tenancy.kcp.io")
		require.Contains(t, says, "topology.kcp.io")
		require.Len(t, bindingsByName(all), 2)
		require.Contains(t, fmt.Sprint(kit.Field(all.Get(kit.LogicalClusterPath), "metadata", "annotations", "internal.apis.kcp.io/resource-bindings")), `"workspaces.tenancy.kcp.io"`)
		all.Do(http.StatusForbidden, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"workspaces.tenancy.kcp.io"},"spec":{"group":"tenancy.kcp.io","scope":"Cluster","names":{"plural":"workspaces","singular":"workspace","kind":"Workspace","listKind":"WorkspaceList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)

		k := parent.CreateChildOn(shard, "bare-"+name, "bare")
		k.UntilReady()
		require.Empty(t, bindingsByName(k))
		none(k)
		k.Do(http.StatusNotFound, http.MethodGet, "/api/v1/namespaces/kube-system", "") // which comes with the type universal

		// Whoever binds them has them, by the policy of root.
		k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-3"}]}`)
		owner := k.As("user-3-token")
		bind := func() {
			owner.BindPath(http.StatusCreated, "tenancy", "root", "tenancy.kcp.io")
			k.UntilBinding("tenancy", "Ready", "True <nil>")
			owner.Eventually("the policy of root lets the owner list", func() bool {
				code, _ := owner.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
				return code == http.StatusOK
			})
		}
		bind()
		code, _ := k.TryDo(http.MethodGet, topologyV1+"partitions", "")
		require.Equal(t, http.StatusNotFound, code, "what is not bound")
		owner.Create(kit.TenancyPath+"workspaces", "%s", workspaceBody("child"))
		owner.Eventually("the workspace is Ready", func() bool {
			return kit.Field(owner.Get(kit.TenancyPath+"workspaces/child"), "status", "phase") == "Ready"
		})
		owner.Do(http.StatusForbidden, http.MethodPatch, kit.TenancyPath+"workspaces/child/status", `{"status":{"phase":"Unavailable"}}`)
		child := k
		child.ClusterName, _ = kit.Field(owner.Get(kit.TenancyPath+"workspaces/child"), "spec", "cluster").(string)
		child.Config = e.Shard(map[string]int{"root": 0, "shard-1": 1}[e.Placement(child.ClusterName)])
		k.BindPath(http.StatusCreated, "again", "root", "tenancy.kcp.io")
		k.UntilBinding("again", "InitialBindingCompleted", "False NamingConflicts")
		k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/again", "")

		// The provider sees them where they are.
		view := kit.WorkspaceClient{Env: parent.Env, Config: e.Shard(shard), ClusterName: "root"}.ThroughExport("tenancy.kcp.io", k.ClusterName)
		require.Equal(t, uids(k, kit.TenancyPath+"workspaces"), uids(view, kit.TenancyPath+"workspaces"))

		// With the binding goes what was bound.
		k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/tenancy", "")
		k.Eventually("the binding is gone", func() bool {
			code, _ := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/tenancy", "")
			served, _ := k.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
			return code == http.StatusNotFound && served == http.StatusNotFound // the index hears of it last
		})
		none(k)
		code, says = child.TryDo(http.MethodGet, kit.LogicalClusterPath, "")
		require.NotEqual(t, http.StatusOK, code, says)
		bind()
		require.Empty(t, uids(k, kit.TenancyPath+"workspaces"))
	}
	root := kit.WorkspaceClient{Env: parent.Env, Config: e.Shard(0), ClusterName: "root"}
	root.Eventually("root has all by bindings", func() bool {
		return kit.Field(root.Get(kit.LogicalClusterPath), "metadata", "annotations", "internal.shardplane.io/system-bindings") != nil
	})
	require.Len(t, uids(root, shardsV1), 2)
}

// TestSystemBindingsOfOld: logical clusters from before the kinds of the system were bound go
// on, and get the bindings.
func TestSystemBindingsOfOld(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for shard := range 2 {
		k := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: fmt.Sprintf("old-cluster-%d", shard)}.ForTest(t)
		k.Create("/apis/core.kcp.io/v1alpha1/logicalclusters", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster","finalizers":["core.kcp.io/logicalcluster-deletion"]}}`)
		k.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"kept"},"spec":{}}`)
		k.Eventually("it has the bindings", func() bool {
			require.Len(t, uids(k, kit.TenancyPath+"workspacetypes"), 1)
			return kit.Field(k.Get(kit.LogicalClusterPath), "metadata", "annotations", "internal.shardplane.io/system-bindings") != nil
		})
		require.Len(t, bindingsByName(k), 2)
		for name, b := range bindingsByName(k) {
			require.Equal(t, "True <nil>", kit.Condition(b, "Ready"), name)
		}
		k.Eventually("it has only what it binds", func() bool {
			require.Len(t, uids(k, kit.TenancyPath+"workspacetypes"), 1)
			code, _ := k.TryDo(http.MethodGet, shardsV1, "")
			return code == http.StatusNotFound
		})
		k.Do(http.StatusOK, http.MethodDelete, kit.LogicalClusterPath, "")
		k.Eventually("it is gone, with all that it held", func() bool {
			all := k
			all.ClusterName = "*"
			_, says := all.TryDo(http.MethodGet, kit.TenancyPath+"workspacetypes", "")
			return !strings.Contains(says, k.ClusterName)
		})
	}
}

// TestSystemClaims: what root exports is claimed as all else, by the identity that root tells, on the
// shards of the consumers, wherever root is.
func TestSystemClaims(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	tenancy := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t).IdentityOf("tenancy.kcp.io")
	for shard, where := range []string{"on the shard of root", "on another one"} {
		t.Run(where, func(t *testing.T) { testSystemClaims(t, e, tenancy, shard) })
	}
}

func testSystemClaims(t *testing.T, e *kit.Env, tenancy string, shard int) {
	const workspaces = kit.TenancyPath + "workspaces"
	provider := kit.NewWorkspaceClient(e, fmt.Sprint("system-claims-provider-", shard)).ForTest(t)
	k := kit.NewWorkspaceClientOn(e, fmt.Sprint("system-claims-", shard), shard).ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	claim := `{"group":"tenancy.kcp.io","resource":"workspaces","identityHash":"` + tenancy + `","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	k.BindPath(http.StatusCreated, "e", provider.ClusterName, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(workspaces, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"seen","labels":{"for":"provider"}}}`)
	k.Create(workspaces, "%s", workspaceBody("hidden"))
	for _, name := range []string{"seen", "hidden"} {
		k.Eventually("it is Ready: "+name, func() bool { return kit.Field(k.Get(workspaces+"/"+name), "status", "phase") == "Ready" })
	}
	all, in := onShard(provider, shard).ThroughExport("e", "*"), onShard(provider, shard).ThroughExport("e", k.ClusterName)
	all.Eventually("the claim is known", func() bool {
		code, _ := all.TryDo(http.MethodGet, workspaces, "")
		return code == http.StatusOK
	})
	untilSees(all, workspaces)
	w := watchThrough(all, schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}, "")

	// Seen is what is selected, with the label that tells who claims it.
	k.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	require.Len(t, claimLabelsIn(next(t, w, watch.Added, "seen").GetLabels()), 1)
	untilSees(all, workspaces, "seen")
	untilSees(in, workspaces, "seen")
	require.Equal(t, k.Get(workspaces+"/seen").GetUID(), in.Get(workspaces+"/seen").GetUID())
	k.Eventually("the label is seen by the consumer", func() bool { return len(claimedObject(k, workspaces+"/seen")) == 1 })
	require.Empty(t, claimedObject(k, workspaces+"/hidden"))
	in.Do(http.StatusNotFound, http.MethodGet, workspaces+"/hidden", "")
	require.Contains(t, fmt.Sprint(in.Get(strings.TrimSuffix(kit.TenancyPath, "/")).Object), "workspaces/status")
	require.NotContains(t, fmt.Sprint(in.Get(strings.TrimSuffix(kit.TenancyPath, "/")).Object), "workspacetypes")

	// What is written through the claim is within the selector, and works as any other.
	in.Create(workspaces, "%s", workspaceBody("made"))
	next(t, w, watch.Added, "made")
	require.Equal(t, "provider", k.Get(workspaces + "/made").GetLabels()["for"])
	k.Eventually("what the provider has made is Ready", func() bool { return kit.Field(in.Get(workspaces+"/made"), "status", "phase") == "Ready" })
	in.Do(http.StatusForbidden, http.MethodPatch, workspaces+"/made", `{"metadata":{"labels":{"for":"others"}}}`)
	in.Do(http.StatusOK, http.MethodDelete, workspaces+"/made", "")
	next(t, w, watch.Deleted, "made")

	// Root's maximal policy has a say.
	provider.Create(kit.RBACPath+"clusterrolebindings", "%s", kit.AllRights)
	user := in.As("user-1-token")
	user.Eventually("the policy of root lets it read", func() bool {
		code, _ := user.TryDo(http.MethodGet, workspaces+"/seen", "")
		return code == http.StatusOK
	})
	denied := user.Do(http.StatusForbidden, http.MethodPut, workspaces+"/seen/status", workspaceBody("seen"))
	require.Contains(t, kit.Field(denied, "message"), "maximal permission policy")

	// Narrowed and widened, on the watch and in lists.
	k.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"nobody"}},"state":"Accepted"}]`)
	next(t, w, watch.Deleted, "seen")
	untilSees(in, workspaces)
	k.Eventually("the label is gone", func() bool { return len(claimedObject(k, workspaces+"/seen")) == 0 })
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	next(t, w, watch.Added, "hidden")
	untilSees(in, workspaces, "hidden", "seen")
	untilSees(all, workspaces, "hidden", "seen")

	// By an identity that is not root's nothing is reached.
	wrong := strings.Replace(claim, tenancy, strings.Repeat("0", 64), 1)
	provider.ClaimInExport(`[` + wrong + `}]`)
	k.AcceptClaims(`[` + wrong + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	for _, view := range []kit.WorkspaceClient{all, in} {
		view.Eventually("there is nothing of that identity", func() bool {
			code, _ := view.TryDo(http.MethodGet, workspaces, "")
			return code == http.StatusNotFound
		})
	}
	k.Eventually("nor a label", func() bool { return len(claimedObject(k, workspaces+"/seen")) == 0 })
}

const (
	topologyV1 = "/apis/topology.kcp.io/v1alpha1/"
	shardsV1   = "/apis/core.kcp.io/v1alpha1/shards"
)

func workspaceBody(name string) string {
	return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q}}`, name)
}

// uids returns those of the objects that a LIST has.
func uids(k kit.WorkspaceClient, path string) []string {
	k.T.Helper()
	var all []string
	items, _ := kit.Field(k.Get(path), "items").([]any)
	for _, item := range items {
		all = append(all, fmt.Sprint(item.(map[string]any)["metadata"].(map[string]any)["uid"]))
	}
	return all
}
