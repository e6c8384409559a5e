package compat_test

import (
	"testing"

	kcpdynamic "github.com/kcp-dev/client-go/dynamic"
	"github.com/kcp-dev/client-go/dynamic/dynamicinformer"
	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	kcpclientset "github.com/kcp-dev/sdk/client/clientset/versioned/cluster"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// gadgets are the exported resources.
var gadgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}

// exporter is a logical cluster that exports gadgets with the SDK's clients.
type exporter struct {
	name     logicalcluster.Name
	identity string
	clients  *kcpclientset.ClusterClientset
	gadgets  kcpdynamic.ClusterInterface
}

func export(t *testing.T, name logicalcluster.Name) exporter {
	t.Helper()
	clients, err := kcpclientset.NewForConfig(proxy(t))
	require.NoError(t, err)
	writer, err := kcpdynamic.NewForConfig(proxy(t))
	require.NoError(t, err)
	provider := clients.Cluster(name.Path())
	_, err = provider.ApisV1alpha1().APIResourceSchemas().Create(t.Context(), &apisv1alpha1.APIResourceSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.gadgets.example.com"},
		Spec: apisv1alpha1.APIResourceSchemaSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ListKind: "GadgetList"},
			Versions: []apisv1alpha1.APIResourceVersion{{Name: "v1", Served: true, Storage: true, Schema: runtime.RawExtension{Raw: []byte(`{"type":"object"}`)}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = provider.ApisV1alpha2().APIExports().Create(t.Context(), &apisv1alpha2.APIExport{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets"},
		Spec: apisv1alpha2.APIExportSpec{Resources: []apisv1alpha2.ResourceSchema{{
			Group: "example.com", Name: "gadgets", Schema: "v1.gadgets.example.com",
			Storage: apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	e := exporter{name: name, clients: clients, gadgets: writer}
	eventually(t, "the export has no identity", func() bool {
		export, err := provider.ApisV1alpha2().APIExports().Get(t.Context(), "gadgets", metav1.GetOptions{})
		if err == nil {
			e.identity = export.Status.IdentityHash
		}
		return e.identity != ""
	})
	return e
}

// bind binds the export in a logical cluster, as `kubectl kcp bind apiexport` does, and creates a
// gadget there.
func (e exporter) bind(t *testing.T, name logicalcluster.Name) {
	t.Helper()
	_, err := e.clients.Cluster(name.Path()).ApisV1alpha2().APIBindings().Create(t.Context(), &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets"},
		Spec: apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{
			Export: &apisv1alpha2.ExportBindingReference{Path: e.name.String(), Name: "gadgets"},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": map[string]any{"name": "a"}}}
	eventually(t, "the API is not served", func() bool {
		_, err := e.gadgets.Cluster(name.Path()).Resource(gadgets).Namespace("default").Create(t.Context(), obj, metav1.CreateOptions{})
		return err == nil
	})
}

// TestIdentity exports and binds an API with the SDK's clients. kcp's dynamic informer must receive
// its objects in all logical clusters of a shard, by the identity of the export.
func TestIdentity(t *testing.T) {
	names := workspaces(t, "identity", 3, "shard-1")
	e := export(t, names[0])
	for _, name := range names[1:] {
		e.bind(t, name)
	}
	ctx := informerContext(t)
	clientsOfShard, err := kcpdynamic.NewForConfig(shard(t, 1))
	require.NoError(t, err)
	informer := dynamicinformer.NewFilteredDynamicInformer(clientsOfShard, gadgets.GroupVersion().WithResource("gadgets:"+e.identity), 0, nil, nil)
	go informer.Informer().Run(ctx.Done())
	for _, name := range names[1:] {
		eventually(t, "the informer lacks the object", func() bool {
			_, err := informer.Lister().ByCluster(name).ByNamespace("default").Get("a")
			return err == nil
		})
	}
}

// TestWorkspaces checks the fields of a new workspace that kcp's plugin requires: the type and the
// URL.
func TestWorkspaces(t *testing.T) {
	clients, err := kcpclientset.NewForConfig(proxy(t))
	require.NoError(t, err)
	created, err := clients.Cluster(root).TenancyV1alpha1().Workspaces().Create(t.Context(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "typed"},
		Spec:       tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}, created.Spec.Type)
	_, err = clients.Cluster(root).TenancyV1alpha1().Workspaces().Get(t.Context(), "typed", metav1.GetOptions{})
	require.NoError(t, err)
	url := ""
	eventually(t, "the workspace is not Ready, or its LogicalCluster is not served", func() bool {
		ws, err := clients.Cluster(root).TenancyV1alpha1().Workspaces().Get(t.Context(), "typed", metav1.GetOptions{})
		if err != nil || ws.Status.Phase != "Ready" {
			return false
		}
		url = ws.Spec.URL
		_, err = clients.Cluster(logicalcluster.NewPath("root:typed")).CoreV1alpha1().LogicalClusters().Get(t.Context(), "cluster", metav1.GetOptions{})
		return err == nil
	})
	require.Equal(t, proxy(t).Host+"/clusters/root:typed", url)
}
