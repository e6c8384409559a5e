package mcprovider_test

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

var gadgets = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}

func gadget(namespace string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(gadgets)
	obj.SetName("a")
	obj.SetNamespace(namespace)
	return obj
}

// label returns a reconciler that labels objects that are read by read.
func label(m mcmanager.Manager, read func(context.Context, mcreconcile.Request, *unstructured.Unstructured) error) mcreconcile.Reconciler {
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		cluster, err := m.GetCluster(ctx, request.ClusterName)
		if err != nil {
			return reconcile.Result{}, err
		}
		obj := gadget("")
		if err := read(ctx, request, obj); err != nil || obj.GetLabels()["seen"] == "yes" {
			return reconcile.Result{}, ctrlclient.IgnoreNotFound(err)
		}
		obj.SetLabels(map[string]string{"seen": "yes"})
		return reconcile.Result{}, cluster.GetClient().Update(ctx, obj)
	})
}

// make creates a gadget once the kind is served, and waits until the controller has labelled it.
func (w *fixture) make(t *testing.T, name logicalcluster.Name, namespace string) {
	t.Helper()
	dyn, err := w.proxy.Cluster(name.Path()).Dynamic()
	require.NoError(t, err)
	in := dyn.Resource(gadgets.GroupVersion().WithResource("gadgets")).Namespace(namespace)
	eventually(t, "the kind is served", func() bool {
		_, err := in.Create(t.Context(), gadget(namespace), metav1.CreateOptions{})
		return err == nil
	})
	eventually(t, "the object is labelled", func() bool {
		got, err := in.Get(t.Context(), "a", metav1.GetOptions{})
		return err == nil && got.GetLabels()["seen"] == "yes"
	})
}

// TestDefinitions watches a kind that some workspaces define after the start, with different schemas. Only metadata can be watched for all
// of them.
func TestDefinitions(t *testing.T) {
	w := newFixture(t, "defines", 4)
	w.options.NoEngage = true
	p, err := mcprovider.New(w.options)
	require.NoError(t, err)
	m := newManager(t, w.options.Config, p)
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(gadgets)
	require.NoError(t, mcbuilder.ControllerManagedBy(m).Named("gadgets").WithOptions(unnamed).WatchesRawSource(p.Source(meta)).
		Complete(label(m, func(ctx context.Context, request mcreconcile.Request, obj *unstructured.Unstructured) error {
			cluster, err := m.GetCluster(ctx, request.ClusterName)
			if err != nil {
				return err
			}
			return cluster.GetAPIReader().Get(ctx, request.NamespacedName, obj)
		})))
	run(t, m.Start)
	for i, name := range w.names[1:] {
		scope, namespace := apiextensionsv1.ClusterScoped, ""
		if i%2 == 1 {
			scope, namespace = apiextensionsv1.NamespaceScoped, "default"
		}
		preserve := true
		_, err := kinds.CustomResourceDefinitions.In(w.proxy.Cluster(name.Path())).Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: gadgets.Group, Scope: scope, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: gadgets.Kind},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: gadgets.Version, Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}},
				}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		w.make(t, name, namespace)
	}
}

// TestIdentity watches a kind that workspaces have bound, by the identity of its export.
func TestIdentity(t *testing.T) {
	w := newFixture(t, "binds", 4)
	provider := w.proxy.Cluster(w.names[0].Path())
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: gadgets.Kind, ListKind: "GadgetList"}
	_, err := kinds.APIResourceSchemas.In(provider).Create(t.Context(), &apisv1alpha1.APIResourceSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.gadgets.example.com"},
		Spec: apisv1alpha1.APIResourceSchemaSpec{
			Group: gadgets.Group, Names: names, Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apisv1alpha1.APIResourceVersion{{
				Name: gadgets.Version, Served: true, Storage: true, Schema: runtime.RawExtension{Raw: []byte(`{"type":"object"}`)},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = kinds.APIExports.In(provider).Create(t.Context(), &apisv1alpha2.APIExport{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets"},
		Spec: apisv1alpha2.APIExportSpec{Resources: []apisv1alpha2.ResourceSchema{{
			Group: gadgets.Group, Name: "gadgets", Schema: "v1.gadgets.example.com",
			Storage: apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	identity := ""
	eventually(t, "the export has an identity", func() bool {
		export, err := kinds.APIExports.In(provider).Get(t.Context(), "gadgets", metav1.GetOptions{})
		if err == nil {
			identity = export.Status.IdentityHash
		}
		return identity != ""
	})

	w.options.NoEngage = true
	w.options.Resources = map[schema.GroupKind]string{gadgets.GroupKind(): "gadgets:" + identity}
	p, err := mcprovider.New(w.options)
	require.NoError(t, err)
	m := newManager(t, w.options.Config, p)
	require.NoError(t, mcbuilder.ControllerManagedBy(m).Named("gadgets").WithOptions(unnamed).WatchesRawSource(p.Source(gadget(""))).
		Complete(label(m, func(ctx context.Context, request mcreconcile.Request, obj *unstructured.Unstructured) error {
			cluster, err := m.GetCluster(ctx, request.ClusterName)
			if err != nil {
				return err
			}
			return cluster.GetCache().Get(ctx, request.NamespacedName, obj)
		})))
	run(t, m.Start)
	for _, name := range w.names[1:] {
		_, err := kinds.APIBindings.In(w.proxy.Cluster(name.Path())).Create(t.Context(), &apisv1alpha2.APIBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "gadgets"},
			Spec: apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{
				Export: &apisv1alpha2.ExportBindingReference{Path: w.names[0].String(), Name: "gadgets"},
			}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		w.make(t, name, "default")
	}
}
