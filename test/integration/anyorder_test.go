package integration

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBindingInAnyOrder: what an export, its binding and its slices come to does not depend on the order in
// which controllers hear of what belongs to them, and so with what is left when it goes again.
func TestBindingInAnyOrder(t *testing.T) {
	e := newEnv(t, two.Get(t))
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
func (k apiKinds) cameTo() string {
	k.t.Helper()
	b, slice := k.get(apisV2+"apibindings/e"), k.get(apisV1+"apiexportendpointslices/elsewhere")
	says := []string{fmt.Sprint(field(b, "status", "phase"))}
	for _, kind := range []string{"Ready", "APIExportValid", "InitialBindingCompleted", "BindingUpToDate", "PermissionClaimsValid"} {
		says = append(says, kind+" "+condition(b, kind))
	}
	bound, _ := field(b, "status", "boundResources").([]any)
	for _, resource := range bound {
		says = append(says, fmt.Sprint(resource.(map[string]any)["schema"].(map[string]any)["name"]))
	}
	exported, _ := field(b, "status", "exportPermissionClaims").([]any)
	applied, _ := field(b, "status", "appliedPermissionClaims").([]any)
	endpoints, _ := field(slice, "status", "endpoints").([]any)
	noted := strings.Count(k.get(clusterItself).GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `{"n":"e"}`)
	return strings.Join(append(says,
		fmt.Sprintf("%d claims, %d applied, %d shown", len(exported), len(applied), len(k.claimed(configMaps+"/a"))),
		fmt.Sprintf("%d noted", noted),
		fmt.Sprintf("slice %s: %d", condition(slice, "APIExportValid"), len(endpoints))), "\n")
}

// untilCameTo waits for it.
func (k apiKinds) untilCameTo(want string) {
	k.t.Helper()
	has := ""
	k.t.Cleanup(func() {
		if has != want {
			k.t.Logf("it came to\n%s", has)
		}
	})
	k.eventually("it comes to\n"+want, func() bool {
		has = k.cameTo()
		return has == want
	})
}

func testAnyOrder(t *testing.T, e *env, seed uint64, shard int) {
	provider, k := newAPIKindsOn(e, fmt.Sprint("order-provider-", seed), shard).in(t), newAPIKinds(e, fmt.Sprint("order-consumer-", seed)).in(t)
	k.create(configMaps, `{"metadata":{"name":"a"}}`)
	const (
		claim   = `{"group":"","resource":"configmaps","verbs":["*"]`
		secrets = "/api/v1/namespaces/default/secrets"
		offered = `{"group":"example.org","name":%q,"schema":%q,"storage":{"crd":{}}}`
	)
	changed := fmt.Sprintf(`{"spec":{"permissionClaims":[%s}],"resources":[`+offered+`,`+offered+`]}}`, claim, "widgets", "v2.widgets.example.org", "gadgets", "v1.gadgets.example.org")
	export := []func(){
		func() {
			provider.create(apisV2+"apiexports", `{"metadata":{"name":"e"},"spec":{"identity":{"secretRef":{"namespace":"default","name":"own"}},"resources":[`+offered+`]}}`, "widgets", "v1.widgets.example.org")
		},
		func() { provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", changed) },
	}
	if shard > 0 { // what another shard exports has to be known before it is bound
		export[0]()
		export = export[1:]
	}
	accept := func() {
		k.ask(http.StatusOK, http.MethodPatch, apisV2+"apibindings/e", `{"spec":{"permissionClaims":[`+claim+`,"selector":{"matchAll":true},"state":"Accepted"}]}}`)
	}
	random := rand.New(rand.NewPCG(seed, 1))
	inAnyOrder(random, export,
		[]func(){func() { provider.schema("v1", "widgets", "size") }},
		[]func(){func() { provider.schema("v2", "widgets", "weight") }},
		[]func(){func() { provider.schema("v1", "gadgets", "size") }},
		[]func(){func() { provider.create(secrets, `{"metadata":{"name":"own"},"stringData":{"key":"mine"}}`) }},
		[]func(){func() { k.bindPath(http.StatusCreated, "e", provider.cluster, "e") }, accept},
		[]func(){func() { k.bindableSlice("elsewhere", provider.cluster, "") }},
	)
	bound := []string{
		"Bound", "Ready True <nil>", "APIExportValid True <nil>", "InitialBindingCompleted True <nil>", "BindingUpToDate True <nil>", "PermissionClaimsValid True <nil>",
		"v2.widgets.example.org", "v1.gadgets.example.org", "1 claims, 1 applied, 1 shown", "2 noted", "slice True <nil>: 1",
	}
	k.untilCameTo(strings.Join(bound, "\n"))
	k.create(widgets, "%s", widget("a", "weight", 1))

	// The provider takes all of it away.
	gone := func(path string) []func() {
		return []func(){func() { provider.ask(http.StatusOK, http.MethodDelete, path, "") }}
	}
	inAnyOrder(random, gone(apisV2+"apiexports/e"), gone(secrets+"/own"),
		gone(apisV1+"apiresourceschemas/v1.widgets.example.org"), gone(apisV1+"apiresourceschemas/v2.widgets.example.org"), gone(apisV1+"apiresourceschemas/v1.gadgets.example.org"))
	bound[2], bound[5] = "APIExportValid False APIExportNotFound", "PermissionClaimsValid False InvalidPermissionClaims"
	bound[8], bound[10] = "0 claims, 0 applied, 0 shown", "slice False APIExportNotFound: 0"
	k.untilCameTo(strings.Join(bound, "\n"))
	require.EqualValues(t, 1, field(k.get(widgets+"/a"), "spec", "weight"))

	// So does the binding.
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/e", "")
	k.gone(apisV2+"apibindings", "e")
	k.eventually("nothing is served any more", func() bool {
		code, _ := k.status(http.MethodGet, widgets, "")
		return code == http.StatusNotFound
	})
	require.NotContains(t, k.get(clusterItself).GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `{"n":"e"}`)
}
