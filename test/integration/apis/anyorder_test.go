package apis

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBindingInAnyOrder: what an export, its binding and its slices come to does not depend on the order in
// which controllers hear of what belongs to them, and so with what is left when it goes again.
func TestBindingInAnyOrder(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for seed := range uint64(8) {
		shard := int(seed % 2) // of the provider; the consumer is on the first
		t.Run(fmt.Sprintf("%d, of a provider on shard %d", seed, shard), func(t *testing.T) { testAnyOrder(t, e, seed, shard) })
	}
}

// inAnyOrder has events happen, those of a line one after the other.
func inAnyOrder(random *rand.Rand, lines ...[]func()) {
	for len(lines) > 0 {
		i := random.IntN(len(lines))
		lines[i][0]()
		if lines[i] = lines[i][1:]; len(lines[i]) == 0 {
			lines = slices.Delete(lines, i, i+1)
		}
	}
}

// cameTo is what the binding e, its export and a slice of that in the same logical cluster have come to, without what
// is another one each time.
func cameTo(k kit.WorkspaceClient) string {
	k.T.Helper()
	b, slice := k.Get(kit.APIsV1Alpha2+"apibindings/e"), k.Get(kit.APIsV1Alpha1+"apiexportendpointslices/elsewhere")
	says := []string{fmt.Sprint(kit.Field(b, "status", "phase"))}
	for _, kind := range []string{"Ready", "APIExportValid", "InitialBindingCompleted", "BindingUpToDate", "PermissionClaimsValid"} {
		says = append(says, kind+" "+kit.Condition(b, kind))
	}
	bound, _ := kit.Field(b, "status", "boundResources").([]any)
	for _, resource := range bound {
		says = append(says, fmt.Sprint(resource.(map[string]any)["schema"].(map[string]any)["name"]))
	}
	exported, _ := kit.Field(b, "status", "exportPermissionClaims").([]any)
	applied, _ := kit.Field(b, "status", "appliedPermissionClaims").([]any)
	endpoints, _ := kit.Field(slice, "status", "endpoints").([]any)
	noted := strings.Count(k.Get(kit.LogicalClusterPath).GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `{"n":"e"}`)
	return strings.Join(append(says,
		fmt.Sprintf("%d claims, %d applied, %d shown", len(exported), len(applied), len(claimedObject(k, kit.ConfigMapsPath+"/a"))),
		fmt.Sprintf("%d noted", noted),
		fmt.Sprintf("slice %s: %d", kit.Condition(slice, "APIExportValid"), len(endpoints))), "\n")
}

// untilCameTo waits for it.
func untilCameTo(k kit.WorkspaceClient, want string) {
	k.T.Helper()
	has := ""
	k.T.Cleanup(func() {
		if has != want {
			k.T.Logf("it came to\n%s", has)
		}
	})
	k.Eventually("it comes to\n"+want, func() bool {
		has = cameTo(k)
		return has == want
	})
}

func testAnyOrder(t *testing.T, e *kit.Env, seed uint64, shard int) {
	provider, k := kit.NewWorkspaceClientOn(e, fmt.Sprint("order-provider-", seed), shard).ForTest(t), kit.NewWorkspaceClient(e, fmt.Sprint("order-consumer-", seed)).ForTest(t)
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"a"}}`)
	const (
		claim   = `{"group":"","resource":"configmaps","verbs":["*"]`
		secrets = "/api/v1/namespaces/default/secrets"
		offered = `{"group":"example.org","name":%q,"schema":%q,"storage":{"crd":{}}}`
	)
	changed := fmt.Sprintf(`{"spec":{"permissionClaims":[%s}],"resources":[`+offered+`,`+offered+`]}}`, claim, "widgets", "v2.widgets.example.org", "gadgets", "v1.gadgets.example.org")
	export := []func(){
		func() {
			provider.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":"e"},"spec":{"identity":{"secretRef":{"namespace":"default","name":"own"}},"resources":[`+offered+`]}}`, "widgets", "v1.widgets.example.org")
		},
		func() { provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", changed) },
	}
	if shard > 0 { // what another shard exports has to be known before it is bound
		export[0]()
		export = export[1:]
	}
	accept := func() {
		k.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apibindings/e", `{"spec":{"permissionClaims":[`+claim+`,"selector":{"matchAll":true},"state":"Accepted"}]}}`)
	}
	random := rand.New(rand.NewPCG(seed, 1))
	inAnyOrder(random, export,
		[]func(){func() { provider.CreateSchema("v1", "widgets", "size") }},
		[]func(){func() { provider.CreateSchema("v2", "widgets", "weight") }},
		[]func(){func() { provider.CreateSchema("v1", "gadgets", "size") }},
		[]func(){func() { provider.Create(secrets, `{"metadata":{"name":"own"},"stringData":{"key":"mine"}}`) }},
		[]func(){func() { k.BindPath(http.StatusCreated, "e", provider.ClusterName, "e") }, accept},
		[]func(){func() { k.CreateEndpointSlice("elsewhere", provider.ClusterName, "") }},
	)
	bound := []string{
		"Bound", "Ready True <nil>", "APIExportValid True <nil>", "InitialBindingCompleted True <nil>", "BindingUpToDate True <nil>", "PermissionClaimsValid True <nil>",
		"v2.widgets.example.org", "v1.gadgets.example.org", "1 claims, 1 applied, 1 shown", "2 noted", "slice True <nil>: 1",
	}
	untilCameTo(k, strings.Join(bound, "\n"))
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "weight", 1))

	// The provider takes all of it away.
	gone := func(path string) []func() {
		return []func(){func() { provider.Do(http.StatusOK, http.MethodDelete, path, "") }}
	}
	inAnyOrder(random, gone(kit.APIsV1Alpha2+"apiexports/e"), gone(secrets+"/own"),
		gone(kit.APIsV1Alpha1+"apiresourceschemas/v1.widgets.example.org"), gone(kit.APIsV1Alpha1+"apiresourceschemas/v2.widgets.example.org"), gone(kit.APIsV1Alpha1+"apiresourceschemas/v1.gadgets.example.org"))
	bound[2], bound[5] = "APIExportValid False APIExportNotFound", "PermissionClaimsValid False InvalidPermissionClaims"
	bound[8], bound[10] = "0 claims, 0 applied, 0 shown", "slice False APIExportNotFound: 0"
	untilCameTo(k, strings.Join(bound, "\n"))
	require.EqualValues(t, 1, kit.Field(k.Get(kit.WidgetsPath+"/a"), "spec", "weight"))

	// So does the binding.
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e", "")
	k.UntilGone(kit.APIsV1Alpha2+"apibindings", "e")
	k.Eventually("nothing is served any more", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusNotFound
	})
	require.NotContains(t, k.Get(kit.LogicalClusterPath).GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `{"n":"e"}`)
}
