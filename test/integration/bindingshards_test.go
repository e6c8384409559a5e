package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const rbacV1 = "/apis/rbac.authorization.k8s.io/v1/"

// TestBindingAcrossShards: provider and consumer may be on different shards.
func TestBindingAcrossShards(t *testing.T) {
	e := newEnv(t, two.Get(t))
	t.Run("life", func(t *testing.T) { testBindingAcrossShards(t, e) })
	t.Run("bind", func(t *testing.T) { testBindAcrossShards(t, e) })
}

// bindPath makes a binding to an export, by the path of its logical cluster.
func (k apiKinds) bindPath(want int, name, path, export string) (says string) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("binding %s:%s is answered %d", path, export, want), func() bool {
		code, answer := k.status(http.MethodPost, apisV2+"apibindings", typed(apisV2+"apibindings", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, path, export)))
		says = answer
		return code == want
	})
	return says
}

func testBindingAcrossShards(t *testing.T, e *env) {
	provider, k := newAPIKindsOn(e, "far-provider", 1).in(t), newAPIKinds(e, "far-consumer").in(t)
	schema := provider.schema("v1", "widgets", "size")
	identity := provider.export("widgets", schema)
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/widgets", `{"metadata":{"annotations":{"extra.apis.kcp.io/a":"b"}}}`)
	k.bindPath(http.StatusCreated, "widgets", "root:far-provider", "widgets")
	bound := k.until("widgets", "Ready", "True <nil>")
	require.Equal(t, provider.cluster, field(bound, "status", "apiExportClusterName"))
	require.Equal(t, map[string]any{
		"group": "example.org", "resource": "widgets", "storageVersions": []any{"v1"},
		"schema": map[string]any{"name": schema, "UID": string(provider.get(apisV1 + "apiresourceschemas/" + schema).GetUID()), "identityHash": identity},
	}, field(bound, "status", "boundResources").([]any)[0])
	k.create(widgets, "%s", widget("a", "size", 1))
	k.eventually("annotations are mirrored", func() bool {
		return k.get(apisV2 + "apibindings/widgets").GetAnnotations()["extra.apis.kcp.io/a"] == "b"
	})

	// The export changes, and with it what is bound.
	second := provider.schema("v2", "widgets", "length")
	gadgets := provider.schema("v1", "gadgets", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/widgets", fmt.Sprintf(
		`{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":%q,"storage":{"crd":{}}}]}}`, second, gadgets))
	k.eventually("the new schemas are bound", func() bool {
		all, _ := field(k.get(apisV2+"apibindings/widgets"), "status", "boundResources").([]any)
		return len(all) == 2 && fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["name"]) == second
	})
	k.create(widgets, "%s", widget("b", "length", 2))
	require.EqualValues(t, 2, field(k.get(widgets+"/b"), "spec", "length"))

	// What it takes away stays with those who have it.
	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/widgets", "")
	for _, name := range []string{schema, second, gadgets} {
		provider.ask(http.StatusOK, http.MethodDelete, apisV1+"apiresourceschemas/"+name, "")
	}
	k.until("widgets", "APIExportValid", "False APIExportNotFound")
	k.create(widgets, "%s", widget("c", "length", 3))

	// One that is made again has the identity, and other schemas.
	third := provider.schema("v1", "widgets", "width")
	require.Equal(t, identity, provider.export("widgets", third))
	k.until("widgets", "APIExportValid", "True <nil>")
	k.eventually("the schema of that name is another one", func() bool {
		all, _ := field(k.get(apisV2+"apibindings/widgets"), "status", "boundResources").([]any)
		return fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["UID"]) == string(provider.get(apisV1+"apiresourceschemas/"+third).GetUID())
	})
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/widgets", "")
	k.eventually("the binding goes", func() bool {
		code, _ := k.status(http.MethodGet, apisV2+"apibindings/widgets", "")
		return code == http.StatusNotFound
	})
}

// testBindAcrossShards: the rules of the provider's logical cluster say who may bind, and
// whoever may not cannot tell what there is.
func testBindAcrossShards(t *testing.T, e *env) {
	provider, k := newAPIKindsOn(e, "asked-provider", 1).in(t), newAPIKinds(e, "asking-consumer").in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	// The administrator's dry run shows that the export is known here.
	k.eventually("the export is known", func() bool {
		code, _ := k.status(http.MethodPost, apisV2+"apibindings?dryRun=All", typed(apisV2+"apibindings", `{"metadata":{"name":"x"},"spec":{"reference":{"export":{"path":"root:asked-provider","name":"e"}}}}`))
		return code == http.StatusCreated
	})
	tenant := k.as("user-1-token")
	for _, path := range []string{"root:asked-provider", "root:asked-nowhere", provider.cluster} {
		for _, export := range []string{"e", "none"} {
			require.Contains(t, tenant.bindPath(http.StatusForbidden, "b", path, export), "no permission to bind to export "+path+":"+export)
		}
	}
	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["e"],"verbs":["bind"]}]}`)
	provider.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"bind"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	tenant.bindPath(http.StatusCreated, "by-path", "root:asked-provider", "e")
	tenant.bindPath(http.StatusCreated, "by-name", provider.cluster, "e")
	k.until("by-path", "Ready", "True <nil>")
	k.until("by-name", "Ready", "False NamingConflicts")
	require.Contains(t, tenant.bindPath(http.StatusForbidden, "b", "root:asked-provider", "none"), "no permission to bind to export root:asked-provider:none")
}
