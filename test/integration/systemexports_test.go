package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestSystemExports: root exports the kinds of the system. What is bound of them is where it
// was before, and who has bound nothing has them as before.
func TestSystemExports(t *testing.T) {
	e := newEnv(t, two.Get(t))
	root := apiKinds{env: e, config: e.Shard(0), cluster: "root"}.in(t)
	identity := func(export string) string {
		var hash string
		root.eventually(export+" has an identity", func() bool {
			code, says := root.status(http.MethodGet, apisV2+"apiexports/"+export, "")
			read := &unstructured.Unstructured{}
			if code != http.StatusOK || read.UnmarshalJSON([]byte(says)) != nil {
				return false
			}
			hash, _ = field(read, "status", "identityHash").(string)
			return hash != ""
		})
		return hash
	}
	tenancy, shards, topology := identity("tenancy.kcp.io"), identity("shards.core.kcp.io"), identity("topology.kcp.io")

	// The identity is a name of the same objects, for wildcards on all shards.
	for _, shard := range []int{0, 1} {
		all := apiKinds{env: e, config: e.Shard(shard), cluster: "*"}.in(t)
		for _, resource := range []string{tenancyV1 + "workspaces:" + tenancy, tenancyV1 + "workspacetypes:" + tenancy, "/apis/core.kcp.io/v1alpha1/shards:" + shards, "/apis/topology.kcp.io/v1alpha1/partitions:" + topology} {
			plain, _, _ := strings.Cut(resource, ":")
			all.eventually(resource+" answers as without the identity", func() bool {
				code, _ := all.status(http.MethodGet, resource, "")
				return code == http.StatusOK
			})
			require.ElementsMatch(t, uids(all, plain), uids(all, resource))
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

	// Everybody may bind workspaces, wherever they are, and uses them as before. More than
	// their status says nobody writes but the system.
	var k, owner apiKinds
	for shard, name := range []string{"system-exports", "system-exports-far"} {
		k = newAPIKindsOn(e, name, 1-shard).in(t)
		k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-3"}]}`)
		owner = k.as("user-3-token")
		owner.bindPath(http.StatusCreated, "tenancy", "root", "tenancy.kcp.io")
		bound := k.until("tenancy", "Ready", "True <nil>")
		require.Contains(t, fmt.Sprint(field(bound, "status", "boundResources")), tenancy)
		owner.eventually("the policy of root lets the owner list", func() bool {
			code, _ := owner.status(http.MethodGet, tenancyV1+"workspaces", "")
			return code == http.StatusOK
		})
	}
	owner.create(tenancyV1+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"child"}}`)
	owner.eventually("the workspace is Ready", func() bool {
		return field(owner.get(tenancyV1+"workspaces/child"), "status", "phase") == "Ready"
	})
	owner.ask(http.StatusForbidden, http.MethodPatch, tenancyV1+"workspaces/child/status", `{"status":{"phase":"Unavailable"}}`)
	k.bind("again", root, "tenancy.kcp.io")
	k.until("again", "InitialBindingCompleted", "False NamingConflicts")

	// Without the binding they are there as before, until every logical cluster has one.
	for _, name := range []string{"again", "tenancy"} {
		k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+name, "")
		k.eventually("the binding is gone", func() bool {
			code, _ := k.status(http.MethodGet, apisV2+"apibindings/"+name, "")
			return code == http.StatusNotFound
		})
	}
	require.Nil(t, k.get(tenancyV1+"workspaces/child").GetDeletionTimestamp())

	// What somebody deletes in root comes back, with the same identity.
	root.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/tenancy.kcp.io", "")
	require.Equal(t, tenancy, identity("tenancy.kcp.io"))
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
