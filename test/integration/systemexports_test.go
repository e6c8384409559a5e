package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// TestSystemExports: root exports the kinds of the system, whose identities are other names of
// the same objects.
func TestSystemExports(t *testing.T) {
	e := newEnv(t, two.Get(t))
	root := apiKinds{env: e, config: e.Shard(0), cluster: "root"}.in(t)
	identity := root.identityOf
	tenancy, shards, topology := identity("tenancy.kcp.io"), identity("shards.core.kcp.io"), identity("topology.kcp.io")

	// The identity is a name of the same objects, for wildcards on all shards.
	for _, shard := range []int{0, 1} {
		all := apiKinds{env: e, config: e.Shard(shard), cluster: "*"}.in(t)
		for _, resource := range []string{tenancyV1 + "workspaces:" + tenancy, tenancyV1 + "workspacetypes:" + tenancy, "/apis/core.kcp.io/v1alpha1/shards:" + shards, "/apis/topology.kcp.io/v1alpha1/partitions:" + topology} {
			plain, _, _ := strings.Cut(resource, ":")
			all.eventually(resource+" answers as without the identity", func() bool {
				code, _ := all.status(http.MethodGet, resource, "")
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
			require.NotEmpty(t, uids(all, tenancyV1+"workspacetypes:"+tenancy), "those of root are on its shard")
		}
		for _, none := range []string{"workspaces:" + shards, "workspaces:" + strings.Repeat("0", 64)} {
			code, _ := all.status(http.MethodGet, tenancyV1+none, "")
			require.Equal(t, http.StatusNotFound, code, none)
		}
		code, _ := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters:"+tenancy, "")
		require.Equal(t, http.StatusNotFound, code, "what every logical cluster has by itself has no identity")
	}
	code, _ := root.status(http.MethodGet, tenancyV1+"workspaces:"+tenancy, "")
	require.Equal(t, http.StatusNotFound, code, "logical clusters know no identities")

	for _, shard := range []int{0, 1} {
		known := apiKinds{env: e, config: e.Shard(shard), cluster: "system:shard"}.in(t)
		known.eventually("the shard tells the identities", func() bool {
			_, says := known.status(http.MethodGet, "/api/v1/namespaces/default/configmaps/apiexport-identity-cache", "")
			return strings.Contains(says, tenancy) && strings.Contains(says, shards) && strings.Contains(says, topology)
		})
	}

	// What somebody deletes in root comes back, with the same identity.
	root.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/tenancy.kcp.io", "")
	require.Equal(t, tenancy, identity("tenancy.kcp.io"))
}

// identityOf waits for the identity of an export.
func (k apiKinds) identityOf(export string) string {
	k.t.Helper()
	var hash string
	k.eventually(export+" has an identity", func() bool {
		code, says := k.status(http.MethodGet, apisV2+"apiexports/"+export, "")
		read := &unstructured.Unstructured{}
		if code != http.StatusOK || read.UnmarshalJSON([]byte(says)) != nil {
			return false
		}
		hash, _ = field(read, "status", "identityHash").(string)
		return hash != ""
	})
	return hash
}

// TestSystemBindings: a logical cluster has the kinds of the system that root exports only if
// it binds them.
func TestSystemBindings(t *testing.T) {
	e := newEnv(t, two.Get(t))
	parent := newAPIKinds(e, "system-bindings").in(t).child("team", "root:team")
	parent.untilReady()
	parent.create(tenancyV1+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"bare"},"spec":{}}`)
	none := func(k apiKinds) {
		t.Helper()
		for _, path := range []string{tenancyV1 + "workspaces", tenancyV1 + "workspacetypes/a", tenancyV1, "/apis/tenancy.kcp.io", topologyV1 + "partitions", shardsV1} {
			code, says := k.status(http.MethodGet, path, "")
			require.Equal(t, http.StatusNotFound, code, "%s: %s", path, says)
		}
		code, _ := k.status(http.MethodPost, tenancyV1+"workspaces", workspaceBody("no"))
		require.Equal(t, http.StatusNotFound, code)
		for _, document := range []string{"/apis", "/openapi/v3", "/openapi/v2"} {
			code, says := k.status(http.MethodGet, document, "")
			require.Equal(t, http.StatusOK, code)
			require.NotContains(t, says, "tenancy.kcp.io", document)
		}
	}
	for shard, name := range []string{"near", "far"} {
		all := parent.childOn(shard, "all-"+name, "root:universal")
		all.untilReady()
		all.eventually("it has only what it binds: shards are in root", func() bool {
			code, _ := all.status(http.MethodGet, shardsV1, "")
			return code == http.StatusNotFound
		})
		require.Empty(t, uids(all, tenancyV1+"workspaces"))
		_, says := all.status(http.MethodGet, "/apis", "")
		require.Contains(t, says, "tenancy.kcp.io")
		require.Contains(t, says, "topology.kcp.io")
		require.Len(t, all.bindings(), 2)
		require.Contains(t, fmt.Sprint(field(all.get(clusterItself), "metadata", "annotations", "internal.apis.kcp.io/resource-bindings")), `"workspaces.tenancy.kcp.io"`)
		all.ask(http.StatusForbidden, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"workspaces.tenancy.kcp.io"},"spec":{"group":"tenancy.kcp.io","scope":"Cluster","names":{"plural":"workspaces","singular":"workspace","kind":"Workspace","listKind":"WorkspaceList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)

		k := parent.childOn(shard, "bare-"+name, "bare")
		k.untilReady()
		require.Empty(t, k.bindings())
		none(k)

		// Whoever binds them has them, by the policy of root.
		k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-3"}]}`)
		owner := k.as("user-3-token")
		bind := func() {
			owner.bindPath(http.StatusCreated, "tenancy", "root", "tenancy.kcp.io")
			k.until("tenancy", "Ready", "True <nil>")
			owner.eventually("the policy of root lets the owner list", func() bool {
				code, _ := owner.status(http.MethodGet, tenancyV1+"workspaces", "")
				return code == http.StatusOK
			})
		}
		bind()
		code, _ := k.status(http.MethodGet, topologyV1+"partitions", "")
		require.Equal(t, http.StatusNotFound, code, "what is not bound")
		owner.create(tenancyV1+"workspaces", "%s", workspaceBody("child"))
		owner.eventually("the workspace is Ready", func() bool {
			return field(owner.get(tenancyV1+"workspaces/child"), "status", "phase") == "Ready"
		})
		owner.ask(http.StatusForbidden, http.MethodPatch, tenancyV1+"workspaces/child/status", `{"status":{"phase":"Unavailable"}}`)
		child := k
		child.cluster, _ = field(owner.get(tenancyV1+"workspaces/child"), "spec", "cluster").(string)
		child.config = e.Shard(map[string]int{"root": 0, "shard-1": 1}[e.placement(child.cluster)])
		k.bindPath(http.StatusCreated, "again", "root", "tenancy.kcp.io")
		k.until("again", "InitialBindingCompleted", "False NamingConflicts")
		k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/again", "")

		// The provider sees them where they are.
		view := apiKinds{env: parent.env, config: e.Shard(shard), cluster: "root"}.through("tenancy.kcp.io", k.cluster)
		require.Equal(t, uids(k, tenancyV1+"workspaces"), uids(view, tenancyV1+"workspaces"))

		// With the binding goes what was bound.
		k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/tenancy", "")
		k.eventually("the binding is gone", func() bool {
			code, _ := k.status(http.MethodGet, apisV2+"apibindings/tenancy", "")
			served, _ := k.status(http.MethodGet, tenancyV1+"workspaces", "")
			return code == http.StatusNotFound && served == http.StatusNotFound // the index hears of it last
		})
		none(k)
		code, says = child.status(http.MethodGet, clusterItself, "")
		require.NotEqual(t, http.StatusOK, code, says)
		bind()
		require.Empty(t, uids(k, tenancyV1+"workspaces"))
	}
	root := apiKinds{env: parent.env, config: e.Shard(0), cluster: "root"}
	root.eventually("root has all by bindings", func() bool {
		return field(root.get(clusterItself), "metadata", "annotations", "internal.shardplane.io/system-bindings") != nil
	})
	require.Len(t, uids(root, shardsV1), 2)
}

// TestSystemBindingsOfOld: logical clusters from before the kinds of the system were bound go
// on, and get the bindings.
func TestSystemBindingsOfOld(t *testing.T) {
	e := newEnv(t, two.Get(t))
	for shard := range 2 {
		k := apiKinds{env: e, config: e.Shard(shard), cluster: fmt.Sprintf("old-cluster-%d", shard)}.in(t)
		k.create("/apis/core.kcp.io/v1alpha1/logicalclusters", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster","finalizers":["core.kcp.io/logicalcluster-deletion"]}}`)
		k.create(tenancyV1+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"kept"},"spec":{}}`)
		k.eventually("it has the bindings", func() bool {
			require.Len(t, uids(k, tenancyV1+"workspacetypes"), 1)
			return field(k.get(clusterItself), "metadata", "annotations", "internal.shardplane.io/system-bindings") != nil
		})
		require.Len(t, k.bindings(), 2)
		for name, b := range k.bindings() {
			require.Equal(t, "True <nil>", condition(b, "Ready"), name)
		}
		k.eventually("it has only what it binds", func() bool {
			require.Len(t, uids(k, tenancyV1+"workspacetypes"), 1)
			code, _ := k.status(http.MethodGet, shardsV1, "")
			return code == http.StatusNotFound
		})
		k.ask(http.StatusOK, http.MethodDelete, clusterItself, "")
		k.eventually("it is gone, with all that it held", func() bool {
			all := k
			all.cluster = "*"
			_, says := all.status(http.MethodGet, tenancyV1+"workspacetypes", "")
			return !strings.Contains(says, k.cluster)
		})
	}
}

// TestSystemClaims: what root exports is claimed as all else, by the identity that root tells, on the
// shards of the consumers, wherever root is.
func TestSystemClaims(t *testing.T) {
	e := newEnv(t, two.Get(t))
	tenancy := apiKinds{env: e, config: e.Shard(0), cluster: "root"}.in(t).identityOf("tenancy.kcp.io")
	for shard, where := range []string{"on the shard of root", "on another one"} {
		t.Run(where, func(t *testing.T) { testSystemClaims(t, e, tenancy, shard) })
	}
}

func testSystemClaims(t *testing.T, e *env, tenancy string, shard int) {
	const workspaces = tenancyV1 + "workspaces"
	provider := newAPIKinds(e, fmt.Sprint("system-claims-provider-", shard)).in(t)
	k := newAPIKindsOn(e, fmt.Sprint("system-claims-", shard), shard).in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	claim := `{"group":"tenancy.kcp.io","resource":"workspaces","identityHash":"` + tenancy + `","verbs":["*"]`
	provider.claim(`[` + claim + `}]`)
	k.bindPath(http.StatusCreated, "e", provider.cluster, "e")
	k.until("e", "Ready", "True <nil>")
	k.create(workspaces, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"seen","labels":{"for":"provider"}}}`)
	k.create(workspaces, "%s", workspaceBody("hidden"))
	for _, name := range []string{"seen", "hidden"} {
		k.eventually("it is Ready: "+name, func() bool { return field(k.get(workspaces+"/"+name), "status", "phase") == "Ready" })
	}
	all, in := provider.at(shard).through("e", "*"), provider.at(shard).through("e", k.cluster)
	all.eventually("the claim is known", func() bool {
		code, _ := all.status(http.MethodGet, workspaces, "")
		return code == http.StatusOK
	})
	all.untilSees(workspaces)
	w := all.follow(schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}, "")

	// Seen is what is selected, with the label that tells who claims it.
	k.accept(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	require.Len(t, claimLabelsIn(next(t, w, watch.Added, "seen").GetLabels()), 1)
	all.untilSees(workspaces, "seen")
	in.untilSees(workspaces, "seen")
	require.Equal(t, k.get(workspaces+"/seen").GetUID(), in.get(workspaces+"/seen").GetUID())
	require.Len(t, k.claimed(workspaces+"/seen"), 1)
	require.Empty(t, k.claimed(workspaces+"/hidden"))
	in.ask(http.StatusNotFound, http.MethodGet, workspaces+"/hidden", "")
	require.Contains(t, fmt.Sprint(in.get(strings.TrimSuffix(tenancyV1, "/")).Object), "workspaces/status")
	require.NotContains(t, fmt.Sprint(in.get(strings.TrimSuffix(tenancyV1, "/")).Object), "workspacetypes")

	// What is written through the claim is within the selector, and works as any other.
	in.create(workspaces, "%s", workspaceBody("made"))
	next(t, w, watch.Added, "made")
	require.Equal(t, "provider", k.get(workspaces + "/made").GetLabels()["for"])
	k.eventually("what the provider has made is Ready", func() bool { return field(in.get(workspaces+"/made"), "status", "phase") == "Ready" })
	in.ask(http.StatusForbidden, http.MethodPatch, workspaces+"/made", `{"metadata":{"labels":{"for":"others"}}}`)
	in.ask(http.StatusOK, http.MethodDelete, workspaces+"/made", "")
	next(t, w, watch.Deleted, "made")

	// Root's maximal policy has a say.
	provider.create(rbacPath+"clusterrolebindings", "%s", allRights)
	user := in.as("user-1-token")
	user.eventually("the policy of root lets it read", func() bool {
		code, _ := user.status(http.MethodGet, workspaces+"/seen", "")
		return code == http.StatusOK
	})
	code, says := user.status(http.MethodPut, workspaces+"/seen/status", workspaceBody("seen"))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "maximal permission policy")

	// Narrowed and widened, on the watch and in lists.
	k.accept(`[` + claim + `,"selector":{"matchLabels":{"for":"nobody"}},"state":"Accepted"}]`)
	next(t, w, watch.Deleted, "seen")
	in.untilSees(workspaces)
	require.Empty(t, k.claimed(workspaces+"/seen"))
	k.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	next(t, w, watch.Added, "hidden")
	in.untilSees(workspaces, "hidden", "seen")
	all.untilSees(workspaces, "hidden", "seen")

	// By an identity that is not root's nothing is reached.
	wrong := strings.Replace(claim, tenancy, strings.Repeat("0", 64), 1)
	provider.claim(`[` + wrong + `}]`)
	k.accept(`[` + wrong + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	for _, view := range []apiKinds{all, in} {
		view.eventually("there is nothing of that identity", func() bool {
			code, _ := view.status(http.MethodGet, workspaces, "")
			return code == http.StatusNotFound
		})
	}
	k.eventually("nor a label", func() bool { return len(k.claimed(workspaces+"/seen")) == 0 })
}

const (
	topologyV1 = "/apis/topology.kcp.io/v1alpha1/"
	shardsV1   = "/apis/core.kcp.io/v1alpha1/shards"
)

func workspaceBody(name string) string {
	return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q}}`, name)
}

// uids returns those of the objects that a LIST has.
func uids(k apiKinds, path string) []string {
	k.t.Helper()
	var all []string
	items, _ := field(k.get(path), "items").([]any)
	for _, item := range items {
		all = append(all, fmt.Sprint(item.(map[string]any)["metadata"].(map[string]any)["uid"]))
	}
	return all
}
