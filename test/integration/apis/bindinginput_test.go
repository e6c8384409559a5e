package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBindingInput: exports and bindings that make no sense, by themselves or together, are told
// so, and what is beside them goes on. What else is wrong about bindings has its tests elsewhere:
//
//	every field, without a server             TestInvalid, TestLengths, FuzzValidate of pkg/apis
//	rules of conversions                      testConversion, FuzzConvert of pkg/apis and of its conversions
//	identities that are guessed or empty      testForeignIdentities, TestMergedIdentities, testWrongShapes
//	URLs of views                             testViewURLs, FuzzLocate of pkg/request, TestIsolation
//	hashes in URLs                            TestQualifiedResources of pkg/customresource
//	claims that change in any order           FuzzClaims of pkg/bindings
//	groups of the system from outside         TestIsolation, credentials_test.go, oidc_test.go of test/e2e
//	schemas that are huge and many, webhooks  test/neighbours
func TestBindingInput(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("wrong shapes", func(t *testing.T) { testWrongShapes(t, e) })
	t.Run("a hundred versions", func(t *testing.T) { testManyVersions(t, e) })
	t.Run("foreign identities", func(t *testing.T) { testForeignIdentities(t, e) })
	t.Run("claims in a circle", func(t *testing.T) { testClaimCircle(t, e) })
	t.Run("ten exports of a resource", func(t *testing.T) { testTenExports(t, e) })
	t.Run("missing schemas", func(t *testing.T) { testMissingSchemas(t, e) })
	t.Run("the system's marks", func(t *testing.T) { testMarks(t, e) })
}

// testClaimCircle: two exports that claim each other's resource, and each its own.
func testClaimCircle(t *testing.T, e *kit.Env) {
	one, other, k := kit.NewWorkspaceClient(e, "circle-one").ForTest(t), kit.NewWorkspaceClient(e, "circle-other").ForTest(t), kit.NewWorkspaceClient(e, "circle-consumer").ForTest(t)
	ofOne, ofOther := one.CreateExport("e", one.CreateSchema("v1", "widgets", "size")), other.CreateExport("e", other.CreateSchema("v1", "gadgets", "size"))
	claims := func(more string) string {
		return fmt.Sprintf(`[{"group":"example.org","resource":"widgets","identityHash":%q,"verbs":["*"]%[2]s},{"group":"example.org","resource":"gadgets","identityHash":%[3]q,"verbs":["*"]%[2]s}]`, ofOne, more, ofOther)
	}
	one.ClaimInExport(claims(""))
	other.ClaimInExport(claims(""))
	k.Bind("e", one, "e")
	k.Bind("other", other, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.UntilBinding("other", "Ready", "True <nil>")
	k.AcceptClaims(claims(`,"state":"Accepted","selector":{"matchLabels":{"for":"providers"}}`))
	const gadgets = "/apis/example.org/v1/namespaces/default/gadgets"
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.Create(gadgets, "%s", strings.Replace(strings.Replace(kit.Widget("b", "size", 1), "Widget", "Gadget", 1), `"name":"b"`, `"name":"b","labels":{"for":"providers"}`, 1))
	k.Create(gadgets, "%s", strings.Replace(kit.Widget("c", "size", 1), "Widget", "Gadget", 1))
	names := map[string]string{k.ClusterName: "k"}
	view := one.ThroughExport("e", "*")
	view.Eventually("what it claims of the other is seen, as selected", func() bool {
		return fmt.Sprint(namesOf(view.Get("/apis/example.org/v1/gadgets"), names)) == "[k/b]"
	})
	require.Equal(t, []string{"k/a"}, namesOf(view.Get("/apis/example.org/v1/widgets"), names), "its own goes before its claim, whatever that selects")
	require.Equal(t, []string{"k/b", "k/c"}, namesOf(other.ThroughExport("e", "*").Get("/apis/example.org/v1/gadgets"), names))
	require.Empty(t, namesOf(other.ThroughExport("e", "*").Get("/apis/example.org/v1/widgets"), names), "its claim was not accepted")
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e", "")
	k.Eventually("it goes, and the other is as it was", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/e", "")
		return code == http.StatusNotFound
	})
	require.Equal(t, []string{"k/b", "k/c"}, namesOf(k.Get(gadgets), names))
}

// testTenExports: of ten exports of the same resource one is bound, and the next when
// that one goes; none has another's objects.
func testTenExports(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "ten-provider").ForTest(t), kit.NewWorkspaceClient(e, "ten-consumer").ForTest(t)
	schema := provider.CreateSchema("v1", "widgets", "size")
	const many = 10
	for n := range many {
		provider.CreateExport(fmt.Sprint("e", n), schema)
		k.Bind(fmt.Sprint("e", n), provider, fmt.Sprint("e", n))
		if n == 0 {
			k.UntilBinding("e0", "Ready", "True <nil>")
		}
	}
	bound := func() (ready []string, waiting int) {
		for n := range many {
			code, says := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+fmt.Sprint("apibindings/e", n), "")
			if code != http.StatusOK {
				continue
			}
			b := &unstructured.Unstructured{}
			require.NoError(k.T, b.UnmarshalJSON([]byte(says)))
			switch {
			case kit.Condition(b, "Ready") == "True <nil>":
				ready = append(ready, b.GetName())
			case kit.Condition(b, "InitialBindingCompleted") == "False NamingConflicts":
				waiting++
			}
		}
		return ready, waiting
	}
	k.Eventually("one is bound, the others wait", func() bool {
		ready, waiting := bound()
		return len(ready) == 1 && waiting == many-1
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e0", "")
	k.Eventually("another one is bound", func() bool {
		ready, waiting := bound()
		return len(ready) == 1 && ready[0] != "e0" && waiting == many-2
	})
	k.Eventually("it is served", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusOK
	})
	require.Empty(t, kit.Field(k.Get(kit.WidgetsPath), "items"), "with an identity of its own")
}

// testMissingSchemas: an export that names a schema which does not exist, and one that has
// only such; what was bound before is served.
func testMissingSchemas(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "missing-provider").ForTest(t), kit.NewWorkspaceClient(e, "missing-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}}]}}`)
	b := k.UntilBinding("e", "APIExportValid", "False InternalError")
	require.Contains(t, fmt.Sprint(kit.Field(b, "status", "conditions")), "v2.widgets.example.org")
	require.Equal(t, "True <nil>", kit.Condition(b, "Ready"))
	k.Get(kit.WidgetsPath + "/a")
	provider.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":"none"},"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.Bind("none", provider, "none")
	k.UntilBinding("none", "APIExportValid", "False InternalError")
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/none", "")
	provider.CreateSchema("v2", "widgets", "size")
	k.UntilBinding("e", "APIExportValid", "True <nil>")
}

// testMarks: who sets what is the server's is refused, or changes nothing.
func testMarks(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "marks-provider").ForTest(t), kit.NewWorkspaceClient(e, "marks-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.Create(kit.RBACPath+"clusterrolebindings", kit.AllRights)
	provider.Create(kit.RBACPath+"clusterrolebindings", kit.AllRights)
	tenant := k.As("user-1-token")
	for _, in := range []kit.WorkspaceClient{tenant, provider.As("user-1-token")} {
		in.Eventually("the tenant may write", func() bool {
			code, _ := in.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings", "")
			return code == http.StatusOK
		})
	}
	testMarksOfOthers(t, provider, k)
	before := k.Get(kit.APIsV1Alpha2 + "apibindings/e")
	for _, tc := range []struct {
		patch string
		code  int
		says  string
	}{
		// Refused, if it would say something else than the server.
		{`{"metadata":{"finalizers":null}}`, http.StatusForbidden, "metadata.finalizers[apis.kcp.io/apibinding-finalizer] is reserved"},
		{`{"metadata":{"finalizers":["apis.kcp.io/apibinding-finalizer","core.kcp.io/logicalcluster"]}}`, http.StatusForbidden, "metadata.finalizers[core.kcp.io/logicalcluster] is reserved"},
		{`{"metadata":{"labels":{"internal.apis.kcp.io/export":"other"}}}`, http.StatusForbidden, "metadata.labels[internal.apis.kcp.io/export] is reserved"},
		{`{"metadata":{"annotations":{"internal.apis.kcp.io/identity":"x"}}}`, http.StatusForbidden, "metadata.annotations[internal.apis.kcp.io/identity] is reserved"},
		{`{"metadata":{"annotations":{"internal.apis.kcp.io/resource-bindings":"{}"}}}`, http.StatusForbidden, "metadata.annotations[internal.apis.kcp.io/resource-bindings] is reserved"},
		{`{"metadata":{"annotations":{"internal.kcp.io/replicate":"x"}}}`, http.StatusForbidden, "metadata.annotations[internal.kcp.io/replicate] is reserved: only administrators"},
		{`{"status":{"boundResources":[],"apiExportClusterName":"root"}}`, http.StatusForbidden, "the status of apibindings is written by the system only"},
		// Taken back, as clients write what they have read elsewhere.
		{`{"metadata":{"labels":{"claimed.internal.apis.kcp.io/x":"y"}}}`, http.StatusOK, ""},
		{`{"metadata":{"labels":{"internal.apis.kcp.io/export":null}}}`, http.StatusOK, ""},
		{`{"metadata":{"annotations":{"kcp.io/cluster":"root"}}}`, http.StatusOK, ""},
		{`{"metadata":{"annotations":{"kcp.io/path":"root:other"}}}`, http.StatusOK, ""},
		{`{"metadata":{"annotations":{"kcp.io/path":null}}}`, http.StatusOK, ""},
		{`{"metadata":{"annotations":{"apis.v1alpha2.kcp.io/v1alpha1-status-applied-permission-claims":"[]"}}}`, http.StatusOK, ""},
	} {
		path := kit.APIsV1Alpha2 + "apibindings/e"
		if strings.Contains(tc.patch, `{"status"`) {
			path += "/status"
		}
		code, answer := writeAs(tenant, http.MethodPatch, path, "merge-patch+json", tc.patch)
		assert.Equal(t, tc.code, code, "%s: %s", tc.patch, answer)
		assert.Contains(t, answer, tc.says, "%s", tc.patch)
		after := k.Get(kit.APIsV1Alpha2 + "apibindings/e")
		require.Equal(t, before.GetFinalizers(), after.GetFinalizers(), "%s", tc.patch)
		require.Equal(t, before.GetLabels(), after.GetLabels(), "%s", tc.patch)
		require.Equal(t, before.GetAnnotations(), after.GetAnnotations(), "%s", tc.patch)
		require.Equal(t, kit.Field(before, "status", "boundResources"), kit.Field(after, "status", "boundResources"), "%s", tc.patch)
		k.Get(kit.WidgetsPath + "/a")
	}
}

// testMarksOfOthers: so it is with what is on exports, schemas and slices, on bound objects and the LogicalCluster,
// and what that is about stays.
func testMarksOfOthers(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const export, slice = kit.APIsV1Alpha2 + "apiexports/e", kit.APIsV1Alpha1 + "apiexportendpointslices/e"
	provider.Eventually("the slice is made", func() bool {
		code, _ := provider.TryDo(http.MethodGet, slice, "")
		return code == http.StatusOK
	})
	for _, tc := range []struct {
		in          kit.WorkspaceClient
		path, patch string
		code        int
		says        string
	}{
		{provider, export, `{"metadata":{"annotations":{"internal.apis.kcp.io/identity":"x"}}}`, http.StatusForbidden, "metadata.annotations[internal.apis.kcp.io/identity] is reserved"},
		{provider, export, `{"metadata":{"annotations":{"kcp.io/path":"root:other"}}}`, http.StatusOK, ""},
		{provider, export, `{"metadata":{"finalizers":["apis.kcp.io/apibinding-finalizer"]}}`, http.StatusForbidden, "metadata.finalizers[apis.kcp.io/apibinding-finalizer] is reserved"},
		{provider, export + "/status", `{"status":{"identityHash":"0"}}`, http.StatusForbidden, "the status of apiexports is written by the system only"},
		{provider, slice + "/status", `{"status":{"endpoints":[{"url":"https://example.org"}]}}`, http.StatusForbidden, "only the system may write it"},
		{provider, kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org", `{"metadata":{"annotations":{"internal.kcp.io/replicate":"x"}}}`, http.StatusForbidden, "metadata.annotations[internal.kcp.io/replicate] is reserved"},
		{k, kit.WidgetsPath + "/a", `{"metadata":{"annotations":{"internal.apis.kcp.io/identity":"x"}}}`, http.StatusForbidden, "metadata.annotations[internal.apis.kcp.io/identity] is reserved"},
		{k, kit.WidgetsPath + "/a", `{"metadata":{"finalizers":["core.kcp.io/logicalcluster"]}}`, http.StatusForbidden, "metadata.finalizers[core.kcp.io/logicalcluster] is reserved"},
		{k, kit.WidgetsPath + "/a", `{"metadata":{"labels":{"claimed.internal.apis.kcp.io/x":"y"},"annotations":{"kcp.io/cluster":"root"}}}`, http.StatusOK, ""},
		{k, kit.LogicalClusterPath, `{"metadata":{"annotations":{"internal.apis.kcp.io/resource-bindings":"{}"}}}`, http.StatusForbidden, "metadata.annotations[internal.apis.kcp.io/resource-bindings] is reserved"},
		{k, kit.LogicalClusterPath, `{"metadata":{"annotations":{"internal.shardplane.io/system-bindings":null}}}`, http.StatusForbidden, "metadata.annotations[internal.shardplane.io/system-bindings] is reserved"},
	} {
		object := strings.TrimSuffix(tc.path, "/status")
		before := tc.in.Get(object)
		code, answer := writeAs(tc.in.As("user-1-token"), http.MethodPatch, tc.path, "merge-patch+json", tc.patch)
		assert.Equal(t, tc.code, code, "%s of %s: %s", tc.patch, tc.path, answer)
		assert.Contains(t, answer, tc.says, "%s of %s", tc.patch, tc.path)
		after := tc.in.Get(object)
		require.Equal(t, before.GetFinalizers(), after.GetFinalizers(), "%s of %s", tc.patch, tc.path)
		require.Equal(t, before.GetLabels(), after.GetLabels(), "%s of %s", tc.patch, tc.path)
		require.Equal(t, before.GetAnnotations(), after.GetAnnotations(), "%s of %s", tc.patch, tc.path)
		require.NotContains(t, fmt.Sprint(kit.Field(after, "status")), "example.org", "%s of %s", tc.patch, tc.path)
	}
	require.Regexp(t, "^[0-9a-f]{64}$", kit.Field(provider.Get(export), "status", "identityHash"))
}
