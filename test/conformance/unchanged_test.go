package conformance

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// unchangedRules are checked for all kinds of definitions and for definitions. TestUnchanged of
// pkg/registry tests the other built-in kinds.
var unchangedRules = []rule{
	{"writes without a change keep the resource version, with any verb", func(u *user) {
		u.define(versioned(withSubresources, ports, "color: {type: string, default: blue}", "none: {type: string, nullable: true}"))
		u.unchanged(u.widgets(), u.object("Widget", "a", `{metadata: {labels: {a: b}}, spec: {size: 1, none: null, ports: [{name: http}, {name: https, port: 443}]}, status: {phase: ready, replicas: 1}}`), true)
		u.unchanged(u.widgets(), u.object("Widget", "empty", `{spec: {ports: [], size: 0}, status: {}}`), true)
		if u.bound != nil {
			return
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(u.parse(widgets()))
		require.NoError(u.t, err)
		delete(content, "status")
		definition := &unstructured.Unstructured{Object: content}
		definition.SetAPIVersion("apiextensions.k8s.io/v1")
		definition.SetKind("CustomResourceDefinition")
		definition.SetName("others." + u.group)
		for _, name := range []string{"plural", "singular"} {
			require.NoError(u.t, unstructured.SetNestedField(content, "others", "spec", "names", name))
		}
		require.NoError(u.t, unstructured.SetNestedField(content, "Other", "spec", "names", "kind"))
		unstructured.RemoveNestedField(content, "spec", "names", "listKind")
		u.unchanged(u.dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}), definition, false)
	}},
}

// unchanged creates an object, and then writes it and its subresources with each verb without a
// change.
func (u *user) unchanged(objects dynamic.ResourceInterface, manifest *unstructured.Unstructured, hasScale bool) {
	u.t.Helper()
	ctx, name := u.t.Context(), manifest.GetName()
	created, err := objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: "tester", Force: true})
	require.NoError(u.t, err)
	parts := [][]string{nil, {"status"}}
	if hasScale {
		parts = append(parts, []string{"scale"})
	}
	for _, subresources := range parts {
		for verb, write := range u.writesOf(objects, manifest, subresources) {
			what := strings.Join(append(subresources, verb), " by ")
			require.NoError(u.t, write(created), what) // may change the manager of a field
			before, err := objects.Get(ctx, name, metav1.GetOptions{})
			require.NoError(u.t, err)
			// Timestamps of managers have a resolution of one second, which could hide a change.
			// They can only be changed with another field.
			managers := before.GetManagedFields()
			for i := range managers {
				if managers[i].Time == nil {
					continue // upstream sets none for managers of the scale
				}
				managers[i].Time = &metav1.Time{Time: managers[i].Time.AddDate(100, 0, 0)}
			}
			before.SetManagedFields(managers)
			before.SetAnnotations(map[string]string{"write": what})
			before, err = objects.Update(ctx, before, metav1.UpdateOptions{FieldManager: "annotator"})
			require.NoError(u.t, err, what)
			for range 5 {
				require.NoError(u.t, write(before), what)
				after, err := objects.Get(ctx, name, metav1.GetOptions{})
				require.NoError(u.t, err)
				require.Equal(u.t, before, after, what)
			}
			created = before
		}
	}
}

// writesOf returns writes of an object or a subresource without a change.
func (u *user) writesOf(objects dynamic.ResourceInterface, manifest *unstructured.Unstructured, subresources []string) map[string]func(before *unstructured.Unstructured) error {
	u.t.Helper()
	ctx, name := u.t.Context(), manifest.GetName()
	isScale := slices.Contains(subresources, "scale")
	if isScale {
		scale, err := objects.Get(ctx, name, metav1.GetOptions{}, subresources...)
		require.NoError(u.t, err)
		manifest = &unstructured.Unstructured{Object: map[string]any{"spec": scale.Object["spec"]}}
		manifest.SetGroupVersionKind(scale.GroupVersionKind())
		manifest.SetName(name)
	}
	content, err := manifest.MarshalJSON()
	require.NoError(u.t, err)
	patch := func(kind types.PatchType, content []byte) error {
		_, err := objects.Patch(ctx, name, kind, content, metav1.PatchOptions{FieldManager: "other"}, subresources...)
		return err
	}
	return map[string]func(before *unstructured.Unstructured) error{
		"apply": func(*unstructured.Unstructured) error {
			_, err := objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: "tester", Force: true}, subresources...)
			return err
		},
		"put": func(before *unstructured.Unstructured) error {
			if isScale {
				scale, err := objects.Get(ctx, name, metav1.GetOptions{}, subresources...)
				require.NoError(u.t, err)
				before = scale
			}
			_, err := objects.Update(ctx, before, metav1.UpdateOptions{FieldManager: "other"}, subresources...)
			return err
		},
		"put of the manifest": func(before *unstructured.Unstructured) error {
			put := manifest.DeepCopy()
			put.SetResourceVersion(before.GetResourceVersion())
			put.SetAnnotations(before.GetAnnotations())
			if status, ok := before.Object["status"]; ok && put.Object["status"] == nil {
				put.Object["status"] = status // the subresource would remove it
			}
			_, err := objects.Update(ctx, put, metav1.UpdateOptions{FieldManager: "other"}, subresources...)
			return err
		},
		"merge patch": func(*unstructured.Unstructured) error { return patch(types.MergePatchType, content) },
		"json patch": func(*unstructured.Unstructured) error {
			return patch(types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/name","value":"`+name+`"}]`))
		},
	}
}
