package admission

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// testTimeout is the timeout of conditions that a test waits for.
const testTimeout = 30 * time.Second

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// sharedCluster is the cluster of tests without special flags. Each uses different workspace names.
var sharedCluster harness.Shared

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// cluster contains clients of the administrator of a logical cluster.
type cluster struct {
	kubernetes.Interface

	name     logicalcluster.Name
	config   *rest.Config
	dynamic  dynamic.Interface
	factory  *client.Factory
	warnings *harness.Warnings
}

// clusters creates workspaces below root and returns their logical clusters.
func clusters(t *testing.T, c *harness.Cluster, names ...string) []*cluster {
	t.Helper()
	workspaces := kinds.Workspaces.In(harness.NewFactory(t, c.Proxy()).Cluster(logicalcluster.NewPath("root")))
	out := make([]*cluster, 0, len(names))
	for _, name := range names {
		harness.Create(t, workspaces, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range names {
		var ws *tenancyv1alpha1.Workspace
		eventually(t, "workspace "+name+" to become Ready", func() bool {
			var err error
			ws, err = workspaces.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		})
		out = append(out, newCluster(t, c.Proxy(), logicalcluster.Name(ws.Spec.Cluster)))
	}
	for _, in := range out {
		eventually(t, "the namespace default", func() bool {
			_, err := in.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
	}
	return out
}

func newCluster(t *testing.T, proxy *rest.Config, name logicalcluster.Name) *cluster {
	t.Helper()
	in := &cluster{name: name, config: harness.In(proxy, name.String()), factory: harness.NewFactory(t, proxy), warnings: &harness.Warnings{}}
	in.config.WarningHandlerWithContext = in.warnings
	in.Interface = harness.Clientset(t, in.config, "")
	var err error
	in.dynamic, err = dynamic.NewForConfig(in.config)
	require.NoError(t, err)
	return in
}

func (c *cluster) createNamespace(t *testing.T, name string) {
	t.Helper()
	harness.Create(t, c.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func (c *cluster) configMap(ctx context.Context, name string, data map[string]string, options metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, options)
}

// dryRun creates a ConfigMap with dry run.
func (c *cluster) dryRun(ctx context.Context, name string) error {
	_, err := c.configMap(ctx, name, nil, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// defineWidgets defines widgets with an arbitrary spec.
func (c *cluster) defineWidgets(t *testing.T) {
	t.Helper()
	c.define(t, "widget", "Widget", apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)})
}

// define defines a custom resource with this spec, and waits until it is served.
func (c *cluster) define(t *testing.T, singular, kind string, spec apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	plural := singular + "s"
	harness.Create(t, kinds.CustomResourceDefinitions.In(c.factory.Cluster(c.name.Path())), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: singular, Kind: kind, ListKind: kind + "List"},
			Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type:       "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
				}},
			}},
		},
	})
	resource := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: plural}
	eventually(t, plural+" to be served", func() bool {
		_, err := c.dynamic.Resource(resource).Namespace("default").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
}

func (c *cluster) widget(ctx context.Context, name string, spec map[string]any) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "spec": spec}}
	u.SetName(name)
	return c.dynamic.Resource(widgets).Namespace("default").Create(ctx, u, metav1.CreateOptions{})
}

// eventually waits for a condition, which is evaluated on the goroutine of the test, so that it may
// fail the test.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, testTimeout, true, func(context.Context) (bool, error) {
		return condition(), nil
	}), "timed out waiting for %s", what)
}
