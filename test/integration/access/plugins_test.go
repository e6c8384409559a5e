package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// replayed is a request of a plugin, and the parts of the response that the plugin uses.
type replayed struct {
	// If Discovery is set, the resources of this logical cluster are discovered, and Path is not used.
	Discovery string            `json:"discovery"`
	Served    map[string]string `json:"served"`

	Method string            `json:"method"`
	Path   string            `json:"path"`
	Body   string            `json:"body"`
	Token  string            `json:"token"`
	Want   int               `json:"want"`
	Until  map[string]string `json:"until"`
	Fields map[string]string `json:"fields"`
}

// TestPlugins replays the requests of the published kubectl plugins of kcp.
func TestPlugins(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	kit.NewWorkspaceClientOn(e, "plugins-provider", 1)
	consumer := kit.NewWorkspaceClient(e, "plugins").ForTest(t)
	consumer.BindAdmin("user-1")
	consumer.As("user-1-token").UntilCode(http.StatusOK, http.MethodGet, kit.APIsV1Alpha2+"apibindings", "")
	file := harness.ReadFile(t, "testdata/plugins.yaml")
	names := strings.NewReplacer("$PROVIDER", "root:plugins-provider", "$CONSUMER", "root:plugins", "$NAME", "plugins", "$SNAPSHOT", snapshot(t))
	var commands []struct {
		Command  string     `json:"command"`
		Requests []replayed `json:"requests"`
	}
	require.NoError(t, yaml.UnmarshalStrict(file, &commands))
	require.NotEmpty(t, commands)
	for _, c := range commands {
		for i := range c.Requests {
			of := &c.Requests[i]
			what := fmt.Sprintf("%s, request %d", c.Command, i)
			if of.Discovery != "" {
				of.discover(t, e.Proxy(), names, what)
				continue
			}
			of.replay(t, e, names, what)
		}
	}
}

// snapshot returns the output of kubectl kcp crd snapshot.
func snapshot(t *testing.T) string {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sheriffs.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "sheriffs", Singular: "sheriff", Kind: "Sheriff", ListKind: "SheriffList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"town": {Type: "string"}}}},
				}},
			}},
		},
	}
	schema, err := apisv1alpha1.CRDToAPIResourceSchema(crd, "v1")
	require.NoError(t, err)
	schema.TypeMeta = metav1.TypeMeta{APIVersion: "apis.kcp.io/v1alpha1", Kind: "APIResourceSchema"}
	text, err := json.Marshal(schema)
	require.NoError(t, err)
	return string(text)
}

// discover runs discovery with the client library of the plugins.
func (of *replayed) discover(t *testing.T, config *rest.Config, names *strings.Replacer, what string) {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Host += "/clusters/" + names.Replace(of.Discovery)
	clients, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	groups, err := clients.ServerGroups()
	if of.Want == http.StatusForbidden {
		require.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
		return
	}
	require.NoError(t, err, what)
	require.NotEmpty(t, groups.Groups, what)
	preferred, err := discovery.ServerPreferredResources(clients)
	require.NoError(t, err, what)
	served := map[string]string{}
	for _, list := range preferred {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err, what)
		for i := range list.APIResources {
			served[list.APIResources[i].Name+"."+gv.Group] = gv.Version
		}
	}
	for resource, version := range of.Served {
		require.Equal(t, version, served[resource], "%s: %s", what, resource)
	}
}

// replay sends the request, and repeats it where the plugin waits for a state.
func (of *replayed) replay(t *testing.T, e *kit.Env, names *strings.Replacer, what string) {
	t.Helper()
	config := e.Proxy()
	if of.Token != "" {
		config = kit.WithToken(config, of.Token)
	}
	request := kit.Request{Method: of.Method, Path: names.Replace(of.Path), Body: names.Replace(of.Body), Header: http.Header{"Accept": {"application/json, */*"}, "Content-Type": {"application/json"}}}
	var response map[string]any
	send := func() {
		var code int
		var text []byte
		require.Eventually(t, func() bool {
			code, text = kit.Do(t, config, request)
			return code == of.Want || code != http.StatusForbidden && code != http.StatusServiceUnavailable && code != http.StatusTooManyRequests // clients repeat them
		}, kit.Timeout, 10*time.Millisecond, "%s: the response did not become %d", what, of.Want)
		require.Equal(t, of.Want, code, "%s: %s", what, text)
		response = nil
		decoder := json.NewDecoder(bytes.NewReader(text))
		require.NoError(t, decoder.Decode(&response), what)
	}
	send()
	if len(of.Until) > 0 {
		e.Eventually(what, func() bool {
			for path, value := range of.Until {
				if valueAt(response, path) != value {
					send()
					return false
				}
			}
			return true
		})
	}
	for path, value := range of.Fields {
		got := valueAt(response, path)
		switch value = names.Replace(value); {
		case value == "*" && !strings.Contains(path, "verbs"):
			require.NotEmpty(t, got, "%s: %s", what, path)
		case strings.HasPrefix(value, "/clusters/"): // of a URL
			require.True(t, strings.HasSuffix(got, value), "%s: %s is %s", what, path, got)
		default:
			require.Equal(t, value, got, "%s: %s", what, path)
		}
	}
}

// valueAt returns the text at a path of fields and indices, or "".
func valueAt(value any, path string) string {
	for step := range strings.SplitSeq(path, ".") {
		switch inner := value.(type) {
		case map[string]any:
			value = inner[step]
		case []any:
			index, err := strconv.Atoi(step)
			if err != nil || index >= len(inner) {
				return ""
			}
			value = inner[index]
		default:
			return ""
		}
	}
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}
