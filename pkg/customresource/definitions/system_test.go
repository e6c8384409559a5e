package definitions

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
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
	system, err := NewSystem(NewTable(), []*apiextensionsv1.CustomResourceDefinition{crd("widgets", "Widget"), crd("gadgets", "Gadget")},
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
	taken := newClaims()
	_, err = n.collect(t.Context(), taken, nameScope{cluster: "binds", group: "example.org"}, nil)
	require.NoError(t, err)
	require.True(t, taken.resources.Has("widgets"))
}
