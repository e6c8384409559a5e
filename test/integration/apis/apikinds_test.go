package apis

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	widgetSchema = `{"metadata":{"name":"v1.widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}]}}`
	claimsBoth   = `[{"group":"","resource":"configmaps","verbs":["*"]},{"group":"","resource":"secrets","verbs":["get"],"defaultSelector":{"matchLabels":{"a":"b"}}}]`
)

// TestAPIKinds checks that the kinds of apis.kcp.io are served in both versions.
func TestAPIKinds(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClient(e, "apikinds")
	t.Run("discovery", func(t *testing.T) { testAPIDiscovery(t, k) })
	t.Run("versions", func(t *testing.T) { testAPIVersions(t, k) })
	t.Run("apply", func(t *testing.T) { testAPIApply(t, k) })
	t.Run("unchanged", func(t *testing.T) { testUnchangedKinds(t, kit.NewWorkspaceClient(e, "unchanged")) })
}

func testAPIDiscovery(t *testing.T, k kit.WorkspaceClient) {
	k = k.ForTest(t)
	group := k.Get("/apis/apis.kcp.io")
	require.Equal(t, "v1alpha2", kit.Field(group, "preferredVersion", "version"))
	for path, want := range map[string][]string{
		kit.APIsV1Alpha1: {"apibindings", "apibindings/status", "apiconversions", "apiexportendpointslices", "apiexportendpointslices/status", "apiexports", "apiexports/status", "apiresourceschemas"},
		kit.APIsV1Alpha2: {"apibindings", "apibindings/status", "apiexports", "apiexports/status"},
	} {
		resources, _, err := unstructured.NestedSlice(k.Get(strings.TrimSuffix(path, "/")).Object, "resources")
		require.NoError(t, err)
		var names []string
		for _, r := range resources {
			names = append(names, r.(map[string]any)["name"].(string))
			require.Equal(t, false, r.(map[string]any)["namespaced"])
		}
		require.ElementsMatch(t, want, names)
	}
	for _, name := range []string{"tenancy.kcp.io", "topology.kcp.io"} {
		k.Eventually(name+" is bound", func() bool {
			binding := bindingsByName(k)[name]
			return binding != nil && kit.Field(binding, "status", "phase") == "Bound"
		})
	}
	k.Do(http.StatusNotFound, http.MethodGet, "/api/v1/namespaces/kcp-system", "") // created with the first export
	terminal := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), harness.Kubectl(t), append([]string{"--kubeconfig", k.Kubeconfig(), "--server", k.Proxy().Host + "/clusters/" + k.ClusterName}, args...)...).CombinedOutput() //nolint:gosec // arguments of the test
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, terminal("explain", "apibinding.spec.permissionClaims.selector.matchAll"), "grants access to all objects")
	require.Contains(t, terminal("explain", "apiexport.spec.latestResourceSchemas", "--api-version=apis.kcp.io/v1alpha1"), "records the latest APIResourceSchemas")
	require.Contains(t, terminal("get", "apiresourceschemas,apiexports"), "No resources found")
}

func testAPIVersions(t *testing.T, k kit.WorkspaceClient) {
	k = k.ForTest(t)
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", widgetSchema)
	k.Create(kit.APIsV1Alpha1+"apiexports", `{"metadata":{"name":"one"},"spec":{"latestResourceSchemas":["v1.widgets.example.org"],"permissionClaims":[{"resource":"secrets","resourceSelector":[{"name":"x"}]}]}}`)
	two := k.Get(kit.APIsV1Alpha2 + "apiexports/one")
	require.Equal(t, map[string]any{"name": "widgets", "group": "example.org", "schema": "v1.widgets.example.org", "storage": map[string]any{"crd": map[string]any{}}}, kit.Field(two, "spec", "resources").([]any)[0])
	require.Equal(t, []any{"*"}, kit.Field(two, "spec", "permissionClaims").([]any)[0].(map[string]any)["verbs"])
	require.Equal(t, "root:apikinds", two.GetAnnotations()["kcp.io/path"])

	k.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":"two"},"spec":{"resources":[{"name":"widgets","group":"example.org","schema":"v1.widgets.example.org"},{"name":"gadgets","group":"","schema":"v1.gadgets.core","storage":{"virtual":{"identityHash":"a","reference":{"kind":"K","name":"n"}}}}],"permissionClaims":%s}}`, claimsBoth)
	before := k.Get(kit.APIsV1Alpha2 + "apiexports/two")
	one := k.Get(kit.APIsV1Alpha1 + "apiexports/two")
	require.Equal(t, []any{"v1.widgets.example.org"}, kit.Field(one, "spec", "latestResourceSchemas"))
	require.Contains(t, one.GetAnnotations(), "apis.v1alpha2.kcp.io/resource-schemas")
	one.SetLabels(map[string]string{"touched": "yes"})
	body, err := one.MarshalJSON()
	require.NoError(t, err)
	k.Eventually("a client of v1alpha1 updates the export", func() bool {
		one = k.Get(kit.APIsV1Alpha1 + "apiexports/two")
		one.SetLabels(map[string]string{"touched": "yes"})
		body, err = one.MarshalJSON()
		require.NoError(t, err)
		code, _ := kit.Do(t, k.Config, kit.Request{Method: http.MethodPut, Path: "/clusters/" + k.ClusterName + kit.APIsV1Alpha1 + "apiexports/two", Body: string(body), Header: http.Header{"Content-Type": {"application/json"}}})
		return code == http.StatusOK
	})
	after := k.Get(kit.APIsV1Alpha2 + "apiexports/two")
	require.Equal(t, kit.Field(before, "spec", "resources"), kit.Field(after, "spec", "resources"))
	require.Equal(t, kit.Field(before, "spec", "permissionClaims"), kit.Field(after, "spec", "permissionClaims"))
	require.Equal(t, "yes", after.GetLabels()["touched"])

	// Wildcards, lists and watches, in each version.
	all := k.In("*")
	for _, path := range []string{kit.APIsV1Alpha1, kit.APIsV1Alpha2} {
		list := all.Get(path + "apiexports?labelSelector=touched%3Dyes")
		require.Len(t, kit.Field(list, "items"), 1)
		require.Equal(t, strings.Trim(path, "/"), "apis/"+kit.Field(list, "apiVersion").(string))
		require.Equal(t, k.ClusterName, kit.Field(list, "items").([]any)[0].(map[string]any)["metadata"].(map[string]any)["annotations"].(map[string]any)["kcp.io/cluster"])
		events := kit.InitialEvents(t, k.Config, "/clusters/*"+path+"apiexports?labelSelector=touched%3Dyes&")
		require.Contains(t, events, `"apiVersion":"`+strings.TrimPrefix(strings.Trim(path, "/"), "apis/"))
		require.Contains(t, events, `"name":"two"`)
	}
	table := kit.Request{Path: "/clusters/" + k.ClusterName + kit.APIsV1Alpha2 + "apibindings", Header: http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}}
	require.Contains(t, string(kit.RequireCode(t, k.Config, table, http.StatusOK)), `"Ready"`)
}

func testAPIApply(t *testing.T, k kit.WorkspaceClient) {
	k = k.ForTest(t)
	apply := "apiexports/applied?fieldManager=tests"
	k.Do(http.StatusCreated, http.MethodPatch, kit.APIsV1Alpha1+apply, `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIExport","metadata":{"name":"applied"},"spec":{"latestResourceSchemas":["v1.widgets.example.org"]}}`)
	applied := k.Patch(kit.APIsV1Alpha2+apply+"&force=true", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"applied"},"spec":{"resources":[{"name":"gadgets","group":"example.org","schema":"v1.gadgets.example.org"}],"permissionClaims":`+claimsBoth+`}}`)
	names := ""
	for _, r := range kit.Field(applied, "spec", "resources").([]any) {
		names += r.(map[string]any)["name"].(string) + " "
	}
	require.Contains(t, names, "gadgets")
	require.Len(t, kit.Field(applied, "spec", "permissionClaims"), 2)
	again := k.Patch(kit.APIsV1Alpha2+apply, `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"applied"},"spec":{"resources":[{"name":"gadgets","group":"example.org","schema":"v1.gadgets.example.org"}]}}`)
	require.Empty(t, kit.Field(again, "spec", "permissionClaims"), "claims that are not applied any more must be removed")

	// If v1alpha1 does not store an empty field, it must not count as a change.
	const claims = `"permissionClaims":[{"group":"","resource":"configmaps","identityHash":"","all":true%s}]`
	for _, manifest := range []string{
		`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIExport","metadata":{"name":"empty"},"spec":{` + fmt.Sprintf(claims, "") + `}}`,
		`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIBinding","metadata":{"name":"empty"},"spec":{"reference":{"export":{"name":"empty"}},` + fmt.Sprintf(claims, `,"state":"Accepted"`) + `}}`,
	} {
		path := kit.APIsV1Alpha1 + "apiexports/empty"
		if strings.Contains(manifest, "APIBinding") {
			path = kit.APIsV1Alpha1 + "apibindings/empty"
		}
		created := k.Do(http.StatusCreated, http.MethodPatch, path+"?fieldManager=tests", manifest)
		k.Eventually("controllers have updated "+path, func() bool {
			created = k.Get(path)
			return kit.Condition(created, "Ready") == "True <nil>" || kit.Condition(created, "IdentityValid") == "True <nil>"
		})
		// If there is no field manager, it is a merge patch, as sent by kubectl apply.
		for _, query := range []string{"?fieldManager=tests", "?fieldManager=tests&dryRun=All", "?dryRun=All", "", "?dryRun=All", ""} {
			again := k.Patch(path+query, manifest)
			require.Equal(t, kit.Field(created, "metadata", "generation"), kit.Field(again, "metadata", "generation"), path+query)
			require.Equal(t, created.Object["spec"], again.Object["spec"], path+query)
		}
	}
}
