package customresourcetest

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Widgets is the resource of WidgetCRD.
var Widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// WidgetCRD returns a namespaced definition that uses all features. Its spec has the properties size, color,
// and the given ones.
func WidgetCRD(properties map[string]apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceDefinition {
	statusReplicas, one := ".status.replicas", float64(1)
	spec := map[string]apiextensionsv1.JSONSchemaProps{
		"size":  {Type: "integer", Minimum: &one},
		"color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"blue"`)}},
	}
	maps.Copy(spec, properties)
	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"spec": {Type: "object", Description: "Desired state of the widget.", Properties: spec},
				"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"replicas": {Type: "integer"}, "phase": {Type: "string"},
				}},
			},
		}},
		Subresources: &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale: &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: ".spec.size", StatusReplicasPath: statusReplicas,
			},
		},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Color", Type: "string", JSONPath: ".spec.color"},
		},
		SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", ShortNames: []string{"wd"},
			},
			Scope:    apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
		},
	}
}

// AddDefinitionSeeds adds valid and malformed definitions as seeds.
func AddDefinitionSeeds(f *testing.F) {
	f.Helper()
	crd := WidgetCRD(nil)
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	valid, err := json.Marshal(crd)
	require.NoError(f, err)
	for _, seed := range []string{
		string(valid), "", "{}", "null", `{"spec":null}`, `{"spec":{"versions":[]}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a.b.c"},"spec":{"group":"b.c","names":{"plural":"a","kind":"A"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{"conversion":{"strategy":"Webhook"},"versions":[{"schema":{"openAPIV3Schema":{"default":{"a":[null]}}}}]}}`,
	} {
		f.Add([]byte(seed))
	}
}

// Widget returns an object of WidgetCRD.
func Widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name},
		"spec":     spec,
	}}
}

// RequireCondition fails the test unless a definition has a condition.
func RequireCondition(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, kind apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus, reason string) {
	t.Helper()
	for _, c := range crd.Status.Conditions {
		if c.Type == kind {
			require.Equal(t, status, c.Status)
			require.Equal(t, reason, c.Reason)
			return
		}
	}
	require.Fail(t, "no such condition", string(kind))
}
