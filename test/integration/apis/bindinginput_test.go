package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

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
