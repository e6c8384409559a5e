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

	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// TestCount: the metric of objects counts those of tenants' resources together,
// in all logical clusters and whatever their schemas, and goes with the last
// definition.
func TestCount(t *testing.T) {
	s := startServer(t, startEtcd(t), serverOptions{release: 20 * time.Millisecond})
	resource := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	other := schema.GroupResource{Group: "example.com", Resource: "gadgets"}
	for i, cluster := range []string{"one", "two", "three"} {
		s.createCRD(t, cluster, widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{fmt.Sprintf("extra%d", i): {Type: "string"}}))
		for name := range i + 1 {
			_, err := s.dynamic(t, cluster).Resource(widgets).Namespace("default").Create(t.Context(), widget(fmt.Sprint(name), nil), metav1.CreateOptions{})
			require.NoError(t, err)
		}
	}
	s.raws.countOne(t.Context(), resource)
	gadgets := widgetCRD(nil)
	gadgets.Name = "gadgets.example.com"
	gadgets.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ListKind: "GadgetList"}
	s.createCRD(t, "one", gadgets)
	gadget := widget("only", nil)
	gadget.SetKind("Gadget")
	_, err := s.dynamic(t, "one").Resource(widgets.GroupVersion().WithResource("gadgets")).Namespace("default").Create(t.Context(), gadget, metav1.CreateOptions{})
	require.NoError(t, err)
	s.raws.countOne(t.Context(), other)
	require.Equal(t, []float64{7}, objectsOf(t, multitenant.Unnamed))
	require.Empty(t, objectsOf(t, resource))
	s.deleteCRD(t, "one", "gadgets.example.com")
	require.Eventually(t, func() bool { return slices.Equal(objectsOf(t, multitenant.Unnamed), []float64{6}) }, deadline, tick)
	for _, cluster := range []string{"one", "two", "three"} {
		s.deleteCRD(t, cluster, "widgets.example.com")
	}
	require.Eventually(t, func() bool { return len(objectsOf(t, multitenant.Unnamed)) == 0 }, deadline, tick)
	s.raws.countOne(t.Context(), resource)
	require.Empty(t, objectsOf(t, multitenant.Unnamed))
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
