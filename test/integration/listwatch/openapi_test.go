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
	"github.com/shardplane/shardplane/test/integration/kit"
)

var rewrite = flag.Bool("rewrite", false, "write which OpenAPI models are served, for what is generated")

// servedModels is what openapi-gen's definitions are pruned by.
const servedModels = "../../../pkg/registry/generated/openapi/served.txt"

// TestOpenAPIIsGeneratedForWhatIsServed holds that the generated definitions are
// those of the documents of a shard and of the cache server, no more and no less.
func TestOpenAPIIsGeneratedForWhatIsServed(t *testing.T) {
	t.Parallel()
	c := kit.Shared(t)
	served := map[string]bool{}
	for base, config := range map[string]*rest.Config{
		"/clusters/root": c.Shard(0), "/services/cache/shards/root/clusters/root": c.Cache(),
	} {
		code, body := kit.Do(t, config, kit.Request{Path: base + "/openapi/v3"})
		require.Equal(t, http.StatusOK, code, "%s", body)
		var index struct{ Paths map[string]any }
		require.NoError(t, json.Unmarshal(body, &index))
		require.NotEmpty(t, index.Paths)
		for path := range index.Paths {
			code, body = kit.Do(t, config, kit.Request{Path: base + "/openapi/v3/" + path})
			require.Equal(t, http.StatusOK, code, "%s", body)
			var document struct {
				Components struct{ Schemas map[string]any }
			}
			require.NoError(t, json.Unmarshal(body, &document))
			for name := range document.Components.Schemas {
				// The others are custom resources, whose definitions have schemas.
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
	kept, err := os.ReadFile(servedModels)
	require.NoError(t, err)
	require.Equal(t, names, strings.Fields(string(kept)), "run this test with -rewrite, then make generate")

	var ref openapicommon.ReferenceCallback = func(string) spec.Ref { return spec.Ref{} }
	require.Equal(t, names, slices.Sorted(maps.Keys(openapi.GetOpenAPIDefinitions(ref))), "run make generate")
}
