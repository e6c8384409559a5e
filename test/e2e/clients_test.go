package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/harness"
)

var (
	workspacesOf = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	bindingsOf   = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	exportsOf    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
	schemasOf    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}
)

func path(p string) logicalcluster.Path { return logicalcluster.NewPath(p) }

// workspace creates a workspace on a shard, waits until it is Ready, and returns its logical cluster.
func workspace(t *testing.T, proxy *client.Factory, parent, name, shard string) string {
	t.Helper()
	return harness.Workspace(t, proxy, parent, name, shard).String()
}

// watchConfigMaps runs an informer until the test ends.
func watchConfigMaps(t *testing.T, scope client.Scope, label string) *client.Informer[*corev1.ConfigMap] {
	t.Helper()
	informer := kinds.ConfigMaps.Informer(scope, client.InformerOptions[*corev1.ConfigMap]{LabelSelector: label})
	background.Run(t.Context(), t, informer.Run)
	return informer
}

// configMap returns a ConfigMap with the label that the informers of a test select.
func configMap(test, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"e2e": test}}}
}

func dynamicOf(f *client.Factory, cluster string) dynamic.Interface {
	d, err := f.Cluster(path(cluster)).Dynamic()
	if err != nil {
		panic(err) // the configuration was used before
	}
	return d
}

// send sends a JSON request, and returns the status code and the body of the response.
func send(t *testing.T, config *rest.Config, method, path, body string) (int, string) {
	t.Helper()
	header := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}}
	code, response, err := harness.Send(t.Context(), config, method, path, header, body)
	require.NoError(t, err)
	return code, string(response)
}

func parse(text string, args ...any) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, text, args...), &obj.Object); err != nil {
		panic(err)
	}
	return obj
}
