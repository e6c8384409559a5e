package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// testProviderGoes: when the workspace of a provider is deleted, what others have bound of it goes on, without its
// policy, and can be emptied and unbound.
func testProviderGoes(t *testing.T, e *env, shard int) {
	name := fmt.Sprint("parting-", shard)
	provider, k := newAPIKindsOn(e, name, shard).in(t), newAPIKinds(e, name+"-consumer").in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	k.bindPath(http.StatusCreated, "e", "root:"+name, "e")
	k.until("e", "Ready", "True <nil>")
	k.create(widgets, "%s", widget("a", "size", 1))
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	tenant := k.as("user-1-token")
	tenant.eventually("the provider has a say", func() bool {
		secrets, _ := tenant.status(http.MethodGet, "/api/v1/secrets", "")
		code, _ := tenant.status(http.MethodGet, widgets, "")
		return secrets == http.StatusOK && code == http.StatusForbidden
	})
	resource := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	before := k.follow(resource, "default")
	next(t, before, watch.Added, "a")

	root := apiKinds{env: k.env, config: e.Proxy(), cluster: "root"}
	root.ask(http.StatusOK, http.MethodDelete, tenancyV1+"workspaces/"+name, "")
	root.gone(tenancyV1+"workspaces", name)
	bound := k.until("e", "APIExportValid", "False APIExportNotFound")
	require.Contains(t, fmt.Sprint(field(bound, "status", "conditions")), "The APIExport does not exist: create it, or delete the binding")
	require.Equal(t, "True <nil>", condition(bound, "Ready"))
	require.Equal(t, provider.cluster, field(bound, "status", "apiExportClusterName"))

	// Whoever may in the consumer's workspace.
	tenant.eventually("nobody else has a say", func() bool {
		code, _ := tenant.status(http.MethodPost, widgets, widget("b", "size", 2))
		return code == http.StatusCreated
	})
	next(t, before, watch.Added, "b") // the former watch goes on
	tenant.untilSees(widgets, "a", "b")
	tenant.ask(http.StatusOK, http.MethodPatch, widgets+"/a", `{"spec":{"size":7}}`)
	require.EqualValues(t, 7, field(tenant.get(widgets+"/a"), "spec", "size"))
	next(t, before, watch.Modified, "a")
	after := tenant.follow(resource, "default")
	next(t, after, watch.Added, "a")
	require.Contains(t, fmt.Sprint(tenant.get("/openapi/v3/apis/example.org/v1").Object), "size")

	// It is emptied, by the tenant and with the binding.
	tenant.ask(http.StatusOK, http.MethodDelete, widgets+"/a", "")
	next(t, after, watch.Deleted, "a")
	tenant.ask(http.StatusOK, http.MethodDelete, widgets, "")
	tenant.untilSees(widgets)
	tenant.create(widgets, "%s", widget("c", "size", 3))
	tenant.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/e", "")
	next(t, after, watch.Deleted, "c")
	k.gone(apisV2+"apibindings", "e")
	k.eventually("it is not served any more", func() bool {
		code, _ := k.status(http.MethodGet, widgets, "")
		return code == http.StatusNotFound
	})
}

// testClaimantGoes: the claims of an export end with it, on open watches, too.
func testClaimantGoes(t *testing.T, e *env) {
	provider, _, consumers := consumersOf(t, e, "claimant", 1)
	k, all := consumers[0], provider.through("e", "*")
	k.create(configMaps, `{"metadata":{"name":"a"}}`)
	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch"]`
	provider.claim(`[` + claim + `}]`)
	k.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	all.untilShows("/api/v1/configmaps", `"name":"a"`)
	w := all.follow(configMapsResource, "")
	next(t, w, watch.Added, "a")
	require.NotEmpty(t, k.get(configMaps+"/a").GetLabels())
	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/e", "")
	next(t, w, watch.Deleted, "a")
	k.until("e", "PermissionClaimsValid", "False InvalidPermissionClaims")
	require.Empty(t, k.get(configMaps+"/a").GetLabels())
}
