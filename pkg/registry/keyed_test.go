package registry_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

// TestKeyedLists requires a limit on the entries of each list of a built-in kind that is merged by key, because patches compare
// all pairs of entries. A new API version may add such a list.
func TestKeyedLists(t *testing.T) {
	t.Parallel()
	list := make([]any, 2*patchcosts.MaxKeyed+1)
	n := 0
	for name, definition := range openapi.GetOpenAPIDefinitions(spec.MustCreateRef) {
		for property, schema := range definition.Schema.Properties {
			listType, _ := schema.Extensions.GetString("x-kubernetes-list-type")
			strategy, _ := schema.Extensions.GetString("x-kubernetes-patch-strategy")
			if !schema.Type.Contains("array") || listType != "map" && listType != "set" && !strings.Contains(strategy, "merge") {
				continue
			}
			n++
			require.Error(t, patchcosts.CheckLists(map[string]any{property: list}), "%s.%s is missing in the lists of patchcosts", name, property)
		}
	}
	require.Greater(t, n, 10)
}
