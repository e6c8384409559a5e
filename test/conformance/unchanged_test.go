package conformance

import (
	"fmt"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// unchangedRules are about all kinds that definitions make, and definitions themselves. TestUnchanged of pkg/registry is about
// the other built-in kinds.
var unchangedRules = []rule{
	{"objects that are written five times without a change keep their version, by any verb", func(u *user) {
		u.define(versioned(withSubresources, ports, "color: {type: string, default: blue}", "none: {type: string, nullable: true}"))
		u.unchanged(u.widgets(), u.object("Widget", "a", `{metadata: {labels: {a: b}}, spec: {size: 1, none: null, ports: [{name: http}, {name: https, port: 443}]}}`).Unstructured)
		u.unchanged(u.widgets(), u.object("Widget", "empty", `{spec: {ports: []}, status: {}}`).Unstructured)
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
		u.unchanged(u.dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}), definition)
	}},
}

// unchanged creates the object of a manifest, and then writes it by each verb without a change.
func (u *user) unchanged(objects dynamic.ResourceInterface, manifest *unstructured.Unstructured) {
	u.t.Helper()
	ctx, name := u.t.Context(), manifest.GetName()
	content, err := manifest.MarshalJSON()
	require.NoError(u.t, err)
	apply := func() (*unstructured.Unstructured, error) {
		return objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: "tester", Force: true})
	}
	patch := func(content []byte, subresources ...string) (*unstructured.Unstructured, error) {
		return objects.Patch(ctx, name, types.MergePatchType, content, metav1.PatchOptions{FieldManager: "other"}, subresources...)
	}
	created, err := apply()
	require.NoError(u.t, err)
	for i, write := range []func(before *unstructured.Unstructured) (*unstructured.Unstructured, error){
		func(*unstructured.Unstructured) (*unstructured.Unstructured, error) { return apply() },
		func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return objects.Update(ctx, before, metav1.UpdateOptions{FieldManager: "other"})
		},
		func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return objects.UpdateStatus(ctx, before, metav1.UpdateOptions{FieldManager: "other"})
		},
		func(*unstructured.Unstructured) (*unstructured.Unstructured, error) { return patch(content) },
		func(*unstructured.Unstructured) (*unstructured.Unstructured, error) { return patch(content, "status") },
		func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return objects.Patch(ctx, name, types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/name","value":"`+name+`"}]`), metav1.PatchOptions{})
		},
	} {
		before, err := write(created) // may change the manager of a field
		require.NoError(u.t, err, "write %d", i)
		// Timestamps of managers have a resolution of one second: without this, writes within one would hide a change. They can
		// only be changed together with something else.
		managers := before.GetManagedFields()
		for i := range managers {
			managers[i].Time = &metav1.Time{Time: managers[i].Time.AddDate(100, 0, 0)}
		}
		before.SetManagedFields(managers)
		before.SetAnnotations(map[string]string{"write": fmt.Sprint(i)})
		before, err = objects.Update(ctx, before, metav1.UpdateOptions{FieldManager: "annotator"})
		require.NoError(u.t, err, "write %d", i)
		for range 5 {
			after, err := write(before)
			require.NoError(u.t, err, "write %d", i)
			require.Equal(u.t, before, after, "write %d", i)
		}
		created = before
	}
}
