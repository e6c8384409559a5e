package definitions

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

// TestSystemOnlyIfBound: a resource that must be bound is served to wildcards and bound logical clusters only,
// and its names are in use everywhere.
func TestSystemOnlyIfBound(t *testing.T) {
	crd := func(plural, kind string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.org"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "example.org", Scope: apiextensionsv1.ClusterScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
				}},
			},
		}
	}
	widgets := schema.GroupResource{Group: "example.org", Resource: "widgets"}
	gadgets := schema.GroupResource{Group: "example.org", Resource: "gadgets"}
	system, err := NewSystem(NewTable(), []*apiextensionsv1.CustomResourceDefinition{crd("widgets", "Widget"), crd("gadgets", "Gadget")}, nil,
		func(context.Context, schema.GroupResource) (string, error) { return "h", nil },
		func(cluster logicalcluster.Name, resource schema.GroupResource) bool {
			return cluster == "binds" && resource == widgets
		})
	require.NoError(t, err)
	sources := NewSources(system)
	for _, test := range []struct {
		in       request.Cluster
		resource schema.GroupResource
		identity string
		served   bool
	}{
		{request.Cluster{Name: "binds"}, widgets, "", false},
		{request.Cluster{Name: "binds"}, widgets, "h", false},
		{request.Cluster{Name: "binds"}, gadgets, "", true},
		{request.Cluster{Name: "has"}, widgets, "", true},
		{request.Cluster{Name: "has"}, widgets, "h", true},
		{request.Cluster{Name: "has"}, widgets, "other", false},
		{request.Cluster{Wildcard: true}, widgets, "", true},
		{request.Cluster{Wildcard: true}, widgets, "h", true},
	} {
		d, err := sources.Resolve(t.Context(), Lookup{Cluster: test.in, Resource: test.resource, Version: "v1", Identity: test.identity})
		require.NoError(t, err)
		require.Equal(t, test.served, d != nil, test)
	}
	for cluster, count := range map[request.Cluster]int{{Name: "binds"}: 1, {Name: "has"}: 2, {Wildcard: true}: 2} {
		all, err := sources.List(t.Context(), cluster)
		require.NoError(t, err)
		require.Len(t, all, count)
	}
	require.False(t, sources.Defined("binds", widgets))
	require.True(t, sources.Defined("has", widgets))

	n := &names{sources: sources, builtIn: func(context.Context, string) ([]apiextensions.CustomResourceDefinitionNames, error) { return nil, nil }}
	taken := claims{}
	_, err = n.collect(t.Context(), taken, nameScope{cluster: "binds", group: "example.org"}, nil)
	require.NoError(t, err)
	require.True(t, taken.has(claim{name: "widgets"}))
}

// TestFaultyDefinition: a stored definition for which the index panics is recorded.
func TestFaultyDefinition(t *testing.T) {
	o := newIndex(nil, nil, newInterner(), unreadable.NewRecord(t.Context(), nil)) // panics without a table
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: "widgets.example.com", ResourceVersion: "7", Annotations: map[string]string{logicalcluster.AnnotationKey: "a"},
	}}
	o.upsert(t.Context(), crd)
	found := o.unreadable.In("a", "")
	require.Len(t, found, 1)
	require.Equal(t, "widgets.example.com", found[0].Name)
	require.Equal(t, unreadable.Panic, found[0].Reason)
	require.Equal(t, "/apiextensions.k8s.io/customresourcedefinitions/a/widgets.example.com", found[0].Key)
}

// TestUnreadDefinitions: before definitions have been read, wildcard lookups and lists return an error that
// suggests a delay.
func TestUnreadDefinitions(t *testing.T) {
	o := newIndex(nil, nil, newInterner(), unreadable.NewRecord(t.Context(), nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // instead of waiting
	_, listed := o.List(ctx, request.Cluster{Name: "a"})
	_, resolved := o.Resolve(ctx, Lookup{Cluster: request.Cluster{Wildcard: true}, Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Version: "v1"})
	for _, err := range []error{listed, resolved} {
		require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
		_, later := apierrors.SuggestsClientDelay(err)
		require.True(t, later, "%v", err)
	}
}

// TestLimits verifies that a definition above the limits cannot be created, but an existing one can be
// changed.
func TestLimits(t *testing.T) {
	t.Parallel()
	crd := customresourcetest.WidgetCRD(nil)
	for i := range 100 {
		crd.Spec.Versions[0].AdditionalPrinterColumns = append(crd.Spec.Versions[0].AdditionalPrinterColumns, apiextensionsv1.CustomResourceColumnDefinition{Name: fmt.Sprint(i), Type: "string", JSONPath: ".spec.color"})
	}
	crd.Status.StoredVersions, crd.ResourceVersion = []string{"v1"}, "1"
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	stored := &apiextensions.CustomResourceDefinition{}
	require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, stored, nil))
	strategy := definitionStrategy{customresourcedefinition.NewStrategy(apiextensionsserver.Scheme)}
	errs := strategy.Validate(t.Context(), stored)
	require.Len(t, errs, 1, "%v", errs)
	require.Equal(t, "spec.versions[0].additionalPrinterColumns", errs[0].Field)
	changed := stored.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	changed.Spec.Names.Categories = []string{"all"}
	require.Empty(t, strategy.ValidateUpdate(t.Context(), changed, stored))
}

// TestStoredColumns verifies that printer columns of a definition stored before the limits existed cannot
// exhaust the memory.
func TestStoredColumns(t *testing.T) {
	t.Parallel()
	crd := customresourcetest.WidgetCRD(nil)
	columns := []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Union", Type: "string", JSONPath: ".spec" + strings.Repeat("[0,0]", 10)},
		{Name: "Descent", Type: "string", JSONPath: strings.Repeat("..x", 10)},
	}
	for i := range 3000 {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{Name: fmt.Sprint(i), Type: "string", JSONPath: ".spec.color"})
	}
	crd.Spec.Versions[0].AdditionalPrinterColumns = columns
	schema, err := NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	served := schema.Version("v1").AdditionalPrinterColumns
	require.Len(t, served, 32)
	require.Equal(t, columns[2:34], served)
	require.Len(t, schema.TerminatingCRD().Spec.Versions[0].AdditionalPrinterColumns, 32)
	require.Len(t, crd.Spec.Versions[0].AdditionalPrinterColumns, len(columns), "the shared definition must not change")
}
