package customresource

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/test/customresourcetest"
	"github.com/shardplane/shardplane/test/heap"
)

// An event is decoded and encoded once for all watches of a version store.
func TestEventsAreEncodedOnce(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	created := mustCreate(t, client, widget("a", map[string]any{"color": "red"}))

	ctx := genericapirequest.WithNamespace(request.WithClusterName(t.Context(), "one"), "")
	v, done := s.listerOf(t, "one")
	defer done()
	watcher, ok := v.(rest.Watcher)
	require.True(t, ok)
	// The storage has no history before its first watch.
	first, err := watcher.Watch(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	defer first.Stop()
	require.Equal(t, watch.Added, (<-first.ResultChan()).Type)
	now := mustList(t, client, metav1.ListOptions{})
	var watches []watch.Interface
	for _, namespace := range []string{"", "", "default"} {
		for _, label := range []labels.Selector{labels.Everything(), labels.Set{"kept": "no"}.AsSelector()} {
			w, err := watcher.Watch(genericapirequest.WithNamespace(ctx, namespace), &internalversion.ListOptions{
				ResourceVersion: now.GetResourceVersion(), LabelSelector: label,
			})
			require.NoError(t, err)
			defer w.Stop()
			watches = append(watches, w)
		}
	}
	created.SetLabels(map[string]string{"kept": "no"})
	updated := mustUpdate(t, client, created)
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	for _, kind := range []watch.EventType{watch.Modified, watch.Deleted} {
		encoded := 0
		for i, w := range watches {
			var event watch.Event
			select {
			case event = <-w.ResultChan():
			case <-time.After(deadline):
				require.Fail(t, "no event")
			}
			if kind == watch.Modified && i%2 == 1 {
				require.Equal(t, watch.Added, event.Type, "an object that matches after an update must be added")
			} else {
				require.Equal(t, kind, event.Type, "%v", event.Object)
			}
			shared, ok := event.Object.(runtime.CacheableObject)
			require.True(t, ok, "%T", event.Object)
			require.NoError(t, shared.CacheEncode("json", func(obj runtime.Object, _ io.Writer) error {
				encoded++
				u, ok := obj.(*unstructured.Unstructured)
				require.True(t, ok)
				require.Equal(t, updated.Object["spec"], u.Object["spec"])
				require.Equal(t, widgets.GroupVersion().String(), u.GetAPIVersion())
				return nil
			}, io.Discard))
		}
		require.Equal(t, 1, encoded, "%s", kind)
	}
}

// TestSelectableFieldsOfOtherClusters: definitions of one logical cluster do not increase the memory of another's
// objects. Versions with different selectable fields share one watch cache, which does not store them.
func TestSelectableFieldsOfOtherClusters(t *testing.T) {
	const objects, size, versions = 150, 64 << 10, 30
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "large", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"text": {Type: "string"}}))
	large := s.Dynamic(t, "large").Resource(widgets).Namespace("default")
	for i := range objects {
		mustCreate(t, large, widget(fmt.Sprint("w", i), map[string]any{"text": strings.Repeat("x", size)}))
	}
	_, err := large.List(t.Context(), metav1.ListOptions{}) // fills the cache of lists
	require.NoError(t, err)
	before := heap.InUse()
	s.CreateCRD(t, "greedy", manyVersions(versions))
	greedy := s.Dynamic(t, "greedy")
	mustCreate(t, greedy.Resource(widgets).Namespace("default"), widget("mine", map[string]any{"size": int64(1)}))
	for i := range versions {
		resource := widgets.GroupResource().WithVersion(fmt.Sprint("v", i+1))
		list := mustList(t, greedy.Resource(resource), metav1.ListOptions{FieldSelector: fmt.Sprintf("spec.f%d=blue", i+1)})
		require.Len(t, list.Items, 1, resource.Version)
	}
	require.Len(t, s.table.Definitions(), 2)
	require.Equal(t, 1, s.opened.custom(), "shared stores, each with a watch cache")
	// Thirty copies would be 300 MiB.
	require.Less(t, heap.InUse()-before, int64(100<<20))
}

// manyVersions returns widgets in versions v1 to vn, each with its own selectable field with a default.
func manyVersions(n int) *apiextensionsv1.CustomResourceDefinition {
	crd := widgetCRD(nil)
	of := crd.Spec.Versions[0]
	crd.Spec.Versions = nil
	for i := range n {
		v := of.DeepCopy()
		field := fmt.Sprint("f", i+1)
		v.Name, v.Storage = fmt.Sprint("v", i+1), i == 0
		v.Schema.OpenAPIV3Schema.Properties["spec"].Properties[field] = apiextensionsv1.JSONSchemaProps{
			Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"blue"`)},
		}
		v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec." + field}}
		crd.Spec.Versions = append(crd.Spec.Versions, *v)
	}
	return crd
}

// TestObjectCountMetric: the metric counts the objects of all tenants' resources together, in all logical clusters and
// with all schemas, and is removed with the last definition.
func TestObjectCountMetric(t *testing.T) {
	data := customresourcetest.NewData(t)
	before := startServer(t, serverOptions{data: data})
	resource := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	clusters := []string{"one", "two", "three"}
	for i, cluster := range clusters {
		before.CreateCRD(t, cluster, widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{fmt.Sprintf("extra%d", i): {Type: "string"}}))
		for name := range i + 1 {
			mustCreate(t, before.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget(fmt.Sprint(name), nil))
		}
	}
	gadgets := widgetCRD(nil)
	gadgets.Name = "gadgets.example.com"
	gadgets.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ListKind: "GadgetList"}
	before.CreateCRD(t, "one", gadgets)
	gadget := widget("only", nil)
	gadget.SetKind("Gadget")
	mustCreate(t, before.Dynamic(t, "one").Resource(widgets.GroupVersion().WithResource("gadgets")).Namespace("default"), gadget)
	before.Stop()

	// Existing objects are counted when their store opens.
	s := startServer(t, serverOptions{data: data, release: 20 * time.Millisecond})
	has := func(want ...float64) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(objectsOf(t, multitenant.Unnamed), want) }, deadline, tick, "%v", want)
	}
	for _, cluster := range clusters {
		mustList(t, s.Dynamic(t, cluster).Resource(widgets), metav1.ListOptions{})
	}
	has(6)
	mustList(t, s.Dynamic(t, "one").Resource(widgets.GroupVersion().WithResource("gadgets")), metav1.ListOptions{})
	has(7)
	require.Empty(t, objectsOf(t, resource))
	s.DeleteCRD(t, "one", "gadgets.example.com")
	has(6)
	for _, cluster := range clusters {
		s.DeleteCRD(t, cluster, "widgets.example.com")
	}
	has()
	require.Empty(t, objectsOf(t, resource))
}

// objectsOf reads the metric of a resource.
func objectsOf(t *testing.T, resource schema.GroupResource) []float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	var found []float64
	for _, family := range families {
		if family.GetName() != "apiserver_resource_objects" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["group"] == resource.Group && labels["resource"] == resource.Resource {
				found = append(found, metric.GetGauge().GetValue())
			}
		}
	}
	return found
}
