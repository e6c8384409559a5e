package apis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBindingInput checks invalid exports and bindings: the error names the field, and valid ones are not affected. Other tests of
// invalid input:
//
//	every field, without a server             TestInvalid, TestLengths, FuzzValidate of pkg/apis
//	rules of conversions                      testConversion, FuzzConvert of pkg/apis and of its conversions
//	identities that are guessed or empty      testForeignIdentities, TestMergedIdentities, testWrongShapes
//	URLs of virtual workspaces                testVirtualWorkspaceURLs, FuzzLocate of pkg/request, TestIsolation
//	hashes in URLs                            TestQualifiedResources of pkg/customresource
//	claims that change in any order           FuzzClaims of pkg/bindings
//	system groups in credentials              TestIsolation, credentials_test.go, oidc_test.go of test/e2e
//	schemas that are huge and many, webhooks  test/noisyneighbors
func TestBindingInput(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("wrong shapes", func(t *testing.T) { testWrongShapes(t, e) })
	t.Run("a hundred versions", func(t *testing.T) { testManyVersions(t, e) })
	t.Run("foreign identities", func(t *testing.T) { testForeignIdentities(t, e) })
	t.Run("missing schemas", func(t *testing.T) { testMissingSchemas(t, e) })
}

// testMissingSchemas checks exports with schemas that do not exist. APIs must still be served if they were bound before.
func testMissingSchemas(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "missing-provider").ForTest(t), kit.NewWorkspaceClient(e, "missing-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.BindReady("e", provider, "e")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}}]}}`)
	b := k.UntilBinding("e", "APIExportValid", "False InternalError")
	require.Contains(t, fmt.Sprint(kit.Field(b, "status", "conditions")), "v2.widgets.example.org")
	require.Equal(t, "True <nil>", kit.Condition(b, "Ready"))
	k.Get(kit.WidgetsPath + "/a")
	provider.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":"none"},"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.Bind("none", provider, "none")
	k.UntilBinding("none", "APIExportValid", "False InternalError")
	k.Delete(kit.APIsV1Alpha2 + "apibindings/none")
	provider.CreateSchema("v2", "widgets", "size")
	k.UntilBinding("e", "APIExportValid", "True <nil>")
}
