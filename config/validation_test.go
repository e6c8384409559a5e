package config

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"sigs.k8s.io/yaml"
)

// TestRulesOfKCP: what kcp's patched definitions reject is rejected.
func TestRulesOfKCP(t *testing.T) {
	const long = "a234567890123456789012345678901234567890123456789012345678901234" // 64
	for _, tc := range []struct {
		crd    string
		object string
		ok     bool
	}{
		{crd: "partitionsets.topology.kcp.io", object: "spec: {dimensions: [region]}", ok: true},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchLabels: {region: west, example.com/tier: one}, matchExpressions: [{key: region, operator: In, values: [a]}, {key: x, operator: Exists}, {key: z, operator: DoesNotExist, values: []}]}}", ok: true},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchExpressions: [{key: region, operator: Within, values: [a]}]}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchExpressions: [{key: region, operator: In}]}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchExpressions: [{key: region, operator: NotIn, values: []}]}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchExpressions: [{key: region, operator: Exists, values: [a]}]}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchExpressions: [{key: a/b/c, operator: Exists}]}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchExpressions: [{key: region, operator: In, values: ['not a label value!']}]}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchLabels: {a/b/c: x}}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchLabels: {region: 'not a label value!'}}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchLabels: {region: " + long + "}}}"},
		{crd: "partitionsets.topology.kcp.io", object: "spec: {shardSelector: {matchLabels: {a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x, i: x, j: x, k: x}}}"},
		{crd: "workspacetypes.tenancy.kcp.io", object: "{metadata: {name: some-type}, spec: {}}", ok: true},
		{crd: "workspacetypes.tenancy.kcp.io", object: "{metadata: {name: some.type}, spec: {}}"},
		{crd: "workspacetypes.tenancy.kcp.io", object: "{metadata: {name: " + long + "}, spec: {}}"},
		{crd: "workspaces.tenancy.kcp.io", object: "{metadata: {name: 1-a}}", ok: true},
		{crd: "workspaces.tenancy.kcp.io", object: "{metadata: {name: a.b}}"},
		{crd: "workspaces.tenancy.kcp.io", object: "{metadata: {name: " + long + "}}"},
		{crd: "apiexports.apis.kcp.io", object: "spec: {maximalPermissionPolicy: {local: {}}}", ok: true},
		{crd: "apiexports.apis.kcp.io", object: "spec: {maximalPermissionPolicy: {}}"},
	} {
		object := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(tc.object), &object), tc.object)
		for _, schema := range schemasOf(t, tc.crd) {
			validator, _, err := validation.NewSchemaValidator(schema)
			require.NoError(t, err)
			errs := validation.ValidateCustomResource(nil, object, validator)
			if len(errs) == 0 {
				for _, err := range validatorFor(t, tc.crd)(t.Context(), object, nil) {
					require.False(t, tc.ok, "%s: %v", tc.object, err)
					errs = append(errs, nil)
				}
			}
			require.Equal(t, tc.ok, len(errs) == 0, "%s: %v", tc.object, errs)
		}
	}
}

// schemasOf returns the schemas of all versions of a system CRD.
func schemasOf(t *testing.T, name string) []*apiextensions.JSONSchemaProps {
	t.Helper()
	crds, err := SystemCRDs()
	require.NoError(t, err)
	var all []*apiextensions.JSONSchemaProps
	for _, crd := range crds {
		for i := range crd.Spec.Versions {
			if crd.Name == name {
				props := &apiextensions.JSONSchemaProps{}
				require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[i].Schema.OpenAPIV3Schema, props, nil))
				all = append(all, props)
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}
