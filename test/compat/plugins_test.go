package compat_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// sent is a request of a plugin, as in test/integration/access/testdata/plugins.yaml.
type sent struct {
	Discovery          string
	Served             map[string]string
	Method, Path, Body string
	Token              string
	Want               int
	Until, Fields      map[string]string
}

// TestPlugins replays what kcp's kubectl plugins send, with clients of their release.
func TestPlugins(t *testing.T) {
	workspaces(t, "plugins-provider", 1, "shard-1")
	consumer := workspaces(t, "plugins", 1, "root")[0]
	owner, err := kubernetes.NewForConfig(at(t, consumer.Path()))
	require.NoError(t, err)
	_, err = owner.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "owner"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "user-1"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	file, err := os.ReadFile("../integration/access/testdata/plugins.yaml")
	require.NoError(t, err)
	var commands []struct {
		Command  string
		Requests []sent
	}
	require.NoError(t, yaml.UnmarshalStrict(file, &commands))
	require.NotEmpty(t, commands)
	names := strings.NewReplacer("$PROVIDER", "root:plugins-provider0", "$CONSUMER", "root:plugins0", "$NAME", "plugins0", "$SNAPSHOT", snapshot(t))
	for _, c := range commands {
		for i, request := range c.Requests {
			what := fmt.Sprintf("%s, request %d", c.Command, i)
			if request.Discovery != "" {
				request.discover(t, logicalcluster.NewPath(names.Replace(request.Discovery)), what)
				continue
			}
			request.replay(t, names, what)
		}
	}
}

// snapshot returns what kubectl kcp crd snapshot makes, which asks no server.
func snapshot(t *testing.T) string {
	t.Helper()
	made, err := apisv1alpha1.CRDToAPIResourceSchema(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sheriffs.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "sheriffs", Singular: "sheriff", Kind: "Sheriff", ListKind: "SheriffList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}, "v1")
	require.NoError(t, err)
	made.TypeMeta = metav1.TypeMeta{APIVersion: "apis.kcp.io/v1alpha1", Kind: "APIResourceSchema"}
	text, err := json.Marshal(made)
	require.NoError(t, err)
	return string(text)
}

// discover asks what is served as the plugins do, by the library's clients.
func (s *sent) discover(t *testing.T, in logicalcluster.Path, what string) {
	t.Helper()
	clients, err := discovery.NewDiscoveryClientForConfig(at(t, in))
	require.NoError(t, err)
	groups, err := clients.ServerGroups()
	if s.Want == http.StatusForbidden {
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
	for resource, version := range s.Served {
		require.Equal(t, version, served[resource], "%s: %s", what, resource)
	}
}

// ask sends the request.
func (s *sent) ask(t *testing.T, names *strings.Replacer) (code int, answer map[string]any) {
	t.Helper()
	config := proxy(t)
	if s.Token != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = s.Token
	}
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), s.Method, config.Host+names.Replace(s.Path), strings.NewReader(names.Replace(s.Body)))
	require.NoError(t, err)
	request.Header.Set("Accept", "application/json, */*")
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	return response.StatusCode, answer
}

// replay sends the request, again where the plugin does so until it likes the answer.
func (s *sent) replay(t *testing.T, names *strings.Replacer, what string) {
	t.Helper()
	var answer map[string]any
	eventually(t, what, func() bool {
		var code int
		code, answer = s.ask(t, names)
		if code == http.StatusForbidden && s.Want != code {
			return false // what was allowed just now is not known everywhere yet
		}
		require.Equal(t, s.Want, code, "%s: %v", what, answer)
		for path, value := range s.Until {
			if valueAt(answer, path) != value {
				return false
			}
		}
		return true
	})
	for path, value := range s.Fields {
		got := valueAt(answer, path)
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
