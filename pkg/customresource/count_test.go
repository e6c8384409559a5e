package customresource

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// TestCount: the metric counts the objects of all tenants' resources together, in all logical clusters and
// with all schemas, and is removed with the last definition.
func TestCount(t *testing.T) {
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
		_, err := s.Dynamic(t, cluster).Resource(widgets).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
	}
	has(6)
	_, err := s.Dynamic(t, "one").Resource(widgets.GroupVersion().WithResource("gadgets")).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
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
