package listwatch

import (
	"encoding/json"
	"flag"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

var rewrite = flag.Bool("rewrite", false, "write the file of served OpenAPI models")

// servedModels is the list of models for openapi-prune.
const servedModels = "../../../pkg/registry/generated/openapi/served.txt"

// TestOpenAPIContainsServedKinds checks that the generated definitions are exactly those in documents of a shard and the cache
// server.
func TestOpenAPIContainsServedKinds(t *testing.T) {
	t.Parallel()
	c := kit.Shared(t)
	served := map[string]bool{}
	for base, config := range map[string]*rest.Config{
		"/clusters/root": c.Shard(0), "/services/cache/shards/root/clusters/root": c.Cache(),
	} {
		body := kit.RequireCode(t, config, kit.Request{Path: base + "/openapi/v3"}, http.StatusOK)
		var index struct{ Paths map[string]any }
		require.NoError(t, json.Unmarshal(body, &index))
		require.NotEmpty(t, index.Paths)
		for path := range index.Paths {
			body = kit.RequireCode(t, config, kit.Request{Path: base + "/openapi/v3/" + path}, http.StatusOK)
			var document struct {
				Components struct{ Schemas map[string]any }
			}
			require.NoError(t, json.Unmarshal(body, &document))
			for name := range document.Components.Schemas {
				// Other models are from the schemas of custom resources.
				if strings.HasPrefix(name, "io.k8s.api") {
					served[name] = true
				}
			}
		}
	}
	names := slices.Sorted(maps.Keys(served))
	require.Greater(t, len(names), 100)
	if *rewrite {
		require.NoError(t, os.WriteFile(servedModels, []byte(strings.Join(names, "\n")+"\n"), 0o600))
	}
	kept := harness.ReadFile(t, servedModels)
	require.Equal(t, names, strings.Fields(string(kept)), "run this test with -rewrite, then make generate")

	var ref openapicommon.ReferenceCallback = func(string) spec.Ref { return spec.Ref{} }
	require.Equal(t, names, slices.Sorted(maps.Keys(openapi.GetOpenAPIDefinitions(ref))), "run make generate")
}
