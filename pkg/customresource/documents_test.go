package customresource

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/programs"
)

var rawNegotiator = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()

func TestDiscovery(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")

	resourcesOf := func(cluster string, aggregated bool) map[string][]string {
		client := s.Discovery(t, cluster)
		client.UseLegacyDiscovery = !aggregated
		_, lists, err := client.ServerGroupsAndResources()
		require.NoError(t, err)
		all := map[string][]string{}
		for _, list := range lists {
			for _, r := range list.APIResources {
				all[list.GroupVersion] = append(all[list.GroupVersion], r.Name)
			}
			slices.Sort(all[list.GroupVersion])
		}
		return all
	}
	builtIn := []string{"customresourcedefinitions", "customresourcedefinitions/status"}
	for _, aggregated := range []bool{true, false} {
		require.Equal(t, map[string][]string{
			"apiextensions.k8s.io/v1": builtIn,
			"example.com/v1":          {"widgets", "widgets/scale", "widgets/status"},
		}, resourcesOf("one", aggregated))
		require.Equal(t, map[string][]string{"apiextensions.k8s.io/v1": builtIn}, resourcesOf("two", aggregated))
	}

	client, err := rest.UnversionedRESTClientFor(rawConfig(s.ClusterConfig("one")))
	require.NoError(t, err)
	raw, err := client.Get().AbsPath("/apis").SetHeader("Accept", acceptAggregated).DoRaw(t.Context())
	require.NoError(t, err)
	var list apidiscoveryv2.APIGroupDiscoveryList
	require.NoError(t, json.Unmarshal(raw, &list))
	require.Equal(t, "apidiscovery.k8s.io/v2", list.APIVersion)
	require.Len(t, list.Items, 2)
	require.Equal(t, "example.com", list.Items[1].Name)

	s.DeleteCRD(t, "one", "widgets.example.com")
	require.Eventually(t, func() bool { return len(resourcesOf("one", true)) == 1 }, deadline, tick)
}

// TestOnlyIndex: the index of a virtual workspace contains discovery and the version, as kcp's clients expect,
// and each of its documents is served.
func TestOnlyIndex(t *testing.T) {
	t.Parallel()
	type nestedKey struct{}
	var server *Server
	sch := schemaOf(t, widgetCRD(nil))
	s := startServer(t, serverOptions{
		assembled: func(s *Server) { server = s },
		around: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				cluster, _ := request.ClusterFrom(r.Context())
				if cluster.Name != "only" || r.Context().Value(nestedKey{}) != nil {
					next.ServeHTTP(w, r)
					return
				}
				r = r.WithContext(context.WithValue(r.Context(), nestedKey{}, true))
				if !server.ServeDocuments(w, r, nil, []*definitions.Definition{{Schema: sch}}) {
					http.NotFound(w, r)
				}
			})
		},
	})
	paths, err := openapi.NewClient(s.Discovery(t, "only").RESTClient()).Paths()
	require.NoError(t, err)
	require.Equal(t, []string{"api", "apis", "apis/example.com", "apis/example.com/v1", "version"}, slices.Sorted(maps.Keys(paths)))
	for name, path := range paths {
		for _, contentType := range []string{"application/json", openapi.ContentTypeOpenAPIV3PB} {
			document, err := path.Schema(contentType)
			require.NoError(t, err, name)
			if name != "api" { // this server has no core group
				require.Contains(t, string(document), "/"+name+"/")
			}
		}
	}
	group, err := paths["apis/example.com"].Schema("application/json")
	require.NoError(t, err)
	require.Contains(t, string(group), `"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}`)
	require.NotContains(t, string(group), "APIGroupList\"}")
	version, err := s.Discovery(t, "only").ServerVersion()
	require.NoError(t, err)
	require.NotEmpty(t, version.GitVersion)

	ordinary, err := openapi.NewClient(s.Discovery(t, "one").RESTClient()).Paths()
	require.NoError(t, err)
	require.Contains(t, ordinary, "version")
}

func TestDiscoveryETag(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one", "two")
	require.Equal(t, s.etag(t, "one", "/apis"), s.etag(t, "two", "/apis"), "equal sets must share documents")
	require.NotEqual(t, s.etag(t, "one", "/apis"), s.etag(t, "three", "/apis"))
	require.Equal(t, s.etag(t, "one", "/openapi/v3"), s.etag(t, "two", "/openapi/v3"))
	require.NotEqual(t, s.etag(t, "one", "/openapi/v3"), s.etag(t, "three", "/openapi/v3"))
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	s.CreateCRD(t, "two", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"shape": {Type: "string"}}))

	hashes := map[string]string{}
	for _, cluster := range []string{"one", "two", "three"} {
		paths, err := openapi.NewClient(s.Discovery(t, cluster).RESTClient()).Paths()
		require.NoError(t, err)
		require.Contains(t, paths, "apis/apiextensions.k8s.io/v1")
		if cluster == "three" {
			require.NotContains(t, paths, "apis/example.com/v1")
			continue
		}
		for _, contentType := range []string{"application/json", openapi.ContentTypeOpenAPIV3PB} {
			schema, err := paths["apis/example.com/v1"].Schema(contentType)
			require.NoError(t, err)
			require.Contains(t, string(schema), "Desired state of the widget.")
			require.Equal(t, cluster == "two", bytes.Contains(schema, []byte("shape")))
		}
		hashes[cluster] = paths["apis/example.com/v1"].ServerRelativeURL()
	}
	require.NotEqual(t, hashes["one"], hashes["two"])

	v2, err := s.Discovery(t, "two").OpenAPISchema()
	require.NoError(t, err)
	found := false
	for _, d := range v2.GetDefinitions().GetAdditionalProperties() {
		found = found || d.GetName() == "com.example.v1.Widget"
	}
	require.True(t, found)
}

// kubectl returns a function that runs kubectl in a logical cluster.
func (s *testServer) kubectl(t *testing.T, cluster string) func(args ...string) string {
	t.Helper()
	kubectl := programs.Kubectl(t)
	dir := t.TempDir()
	config := clientcmdapi.NewConfig()
	config.Clusters["one"] = &clientcmdapi.Cluster{Server: s.ClusterConfig(cluster).Host, InsecureSkipTLSVerify: true}
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: "not-checked"}
	config.Contexts["one"] = &clientcmdapi.Context{Cluster: "one", AuthInfo: "me"}
	config.CurrentContext = "one"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, kubeconfig))
	return func(args ...string) string {
		t.Helper()
		args = append([]string{"--kubeconfig", kubeconfig, "--cache-dir", filepath.Join(dir, "cache")}, args...)
		out, err := exec.CommandContext(t.Context(), kubectl, args...).CombinedOutput()
		require.NoError(t, err, "kubectl %v: %s", args, out)
		return string(out)
	}
}
