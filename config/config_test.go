package config

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

func TestSystemCRDsAreValid(t *testing.T) {
	crds, err := SystemCRDs()
	require.NoError(t, err)
	names := make([]string, 0, len(crds))
	for _, crd := range crds {
		names = append(names, crd.Name)
		require.NotNil(t, crd.Spec.Conversion, "%s is not defaulted", crd.Name)

		// As a server would have accepted it: validation wants the stored versions.
		for i := range crd.Spec.Versions {
			if crd.Spec.Versions[i].Storage {
				crd.Status.StoredVersions = []string{crd.Spec.Versions[i].Name}
			}
		}
		internal := &apiextensions.CustomResourceDefinition{}
		require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil))
		require.Empty(t, validation.ValidateCustomResourceDefinition(t.Context(), internal), crd.Name)
	}
	require.Equal(t, []string{
		"apibindings.apis.kcp.io",
		"apiconversions.apis.kcp.io",
		"apiexportendpointslices.apis.kcp.io",
		"apiexports.apis.kcp.io",
		"apiresourceschemas.apis.kcp.io",
		"cachedresourceendpointslices.cache.kcp.io",
		"cachedresources.cache.kcp.io",
		"clustercachedresourceendpointslices.cache.kcp.io",
		"clustercachedresources.cache.kcp.io",
		"logicalclusters.core.kcp.io",
		"shards.core.kcp.io",
		"workspaceauthenticationconfigurations.tenancy.kcp.io",
		"workspaces.tenancy.kcp.io",
		"workspacetypes.tenancy.kcp.io",
		"partitions.topology.kcp.io",
		"partitionsets.topology.kcp.io",
	}, names)
}

func TestSystemCRDsBelongToTheCaller(t *testing.T) {
	first, err := SystemCRDs()
	require.NoError(t, err)
	first[0].Name = "changed"
	second, err := SystemCRDs()
	require.NoError(t, err)
	require.Equal(t, "apibindings.apis.kcp.io", second[0].Name)
}

func TestLogicalClusterIsNamedCluster(t *testing.T) {
	validate := validatorFor(t, "logicalclusters.core.kcp.io")
	object := func(name string) map[string]any {
		return map[string]any{
			"apiVersion": "core.kcp.io/v1alpha1",
			"kind":       "LogicalCluster",
			"metadata":   map[string]any{"name": name},
			"spec":       map[string]any{},
		}
	}
	require.Empty(t, validate(t.Context(), object("cluster"), nil))
	require.NotEmpty(t, validate(t.Context(), object("another"), nil))
}

func TestImmutableWorkspaceFields(t *testing.T) {
	validate := validatorFor(t, "workspaces.tenancy.kcp.io")
	object := func(spec map[string]any) map[string]any {
		return map[string]any{
			"apiVersion": "tenancy.kcp.io/v1alpha1",
			"kind":       "Workspace",
			"metadata":   map[string]any{"name": "a"},
			"spec":       spec,
		}
	}
	typed := func(name string) map[string]any {
		return map[string]any{"type": map[string]any{"name": name, "path": "root"}}
	}
	cases := map[string]struct {
		old, updated map[string]any
		ok           bool
	}{
		"cluster is set once":     {old: map[string]any{}, updated: map[string]any{"cluster": "a"}, ok: true},
		"cluster does not change": {old: map[string]any{"cluster": "a"}, updated: map[string]any{"cluster": "b"}},
		"cluster is not unset":    {old: map[string]any{"cluster": "a"}, updated: map[string]any{}},
		"URL may change":          {old: map[string]any{"URL": "https://a"}, updated: map[string]any{"URL": "https://b"}, ok: true},
		"URL is not unset":        {old: map[string]any{"URL": "https://a"}, updated: map[string]any{}},
		"type is defaulted":       {old: map[string]any{}, updated: typed("team"), ok: true},
		"type does not change":    {old: typed("team"), updated: typed("universal")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			errs := validate(t.Context(), object(tc.updated), object(tc.old))
			require.Equal(t, tc.ok, len(errs) == 0, "%v", errs)
		})
	}
}

func TestRootWorkspaceTypesReferToEachOther(t *testing.T) {
	types, err := RootWorkspaceTypes()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, wt := range types {
		known[wt.Name] = true
	}
	require.Equal(t, map[string]bool{"root": true, "universal": true, "organization": true, "team": true, "home": true}, known)

	for _, wt := range types {
		refs := wt.Spec.Extend.With
		if wt.Spec.DefaultChildWorkspaceType != nil {
			refs = append(refs, *wt.Spec.DefaultChildWorkspaceType)
		}
		if wt.Spec.LimitAllowedChildren != nil {
			refs = append(refs, wt.Spec.LimitAllowedChildren.Types...)
		}
		if wt.Spec.LimitAllowedParents != nil {
			refs = append(refs, wt.Spec.LimitAllowedParents.Types...)
		}
		for _, ref := range refs {
			require.Equal(t, "root", ref.Path, "type %s", wt.Name)
			require.True(t, known[string(ref.Name)], "type %s refers to unknown type %s", wt.Name, ref.Name)
		}
	}
}

// TestVersionsOfAPIKinds checks that APIs with two versions are stored in the second one and converted by the server,
// and that selectors of claims may change.
func TestVersionsOfAPIKinds(t *testing.T) {
	crds, err := SystemCRDs()
	require.NoError(t, err)
	for _, crd := range crds {
		if crd.Name != "apiexports.apis.kcp.io" && crd.Name != "apibindings.apis.kcp.io" {
			require.Equal(t, apiextensionsv1.NoneConverter, crd.Spec.Conversion.Strategy, crd.Name)
			continue
		}
		require.Equal(t, "https://"+ConversionHost, *crd.Spec.Conversion.Webhook.ClientConfig.URL)
		for _, version := range crd.Spec.Versions {
			require.Equal(t, version.Name == "v1alpha2", version.Storage)
			encoded, err := json.Marshal(version.Schema)
			require.NoError(t, err)
			require.NotContains(t, string(encoded), "selector is immutable")
			require.Contains(t, string(encoded), `"metadata"`)
			if crd.Name == "apibindings.apis.kcp.io" {
				require.Contains(t, string(encoded), "reference must not be changed")
			}
		}
	}
}

// validatorFor returns the CEL validation of the only version of a system CRD.
func validatorFor(t *testing.T, name string) func(ctx context.Context, object, old map[string]any) []error {
	t.Helper()
	crds, err := SystemCRDs()
	require.NoError(t, err)
	for _, crd := range crds {
		if crd.Name != name {
			continue
		}
		props := &apiextensions.JSONSchemaProps{}
		require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema, props, nil))
		structural, err := structuralschema.NewStructural(props)
		require.NoError(t, err)
		validator := cel.NewValidator(structural, true, celconfig.PerCallLimit)
		return func(ctx context.Context, object, old map[string]any) []error {
			var oldObject any
			if old != nil {
				oldObject = old
			}
			list, _ := validator.Validate(ctx, nil, structural, object, oldObject, celconfig.RuntimeCELCostBudget)
			errs := make([]error, 0, len(list))
			for _, e := range list {
				errs = append(errs, e)
			}
			return errs
		}
	}
	require.FailNow(t, "no such CRD", name)
	return nil
}
