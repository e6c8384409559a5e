package apis

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

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
	t.Run("missing schemas", func(t *testing.T) { testMissingSchemas(t, e) })
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
