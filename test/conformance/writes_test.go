package conformance

import (
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const ports = "ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}}"

var writeRules = []rule{
	{"field managers own what they apply, entry by entry", func(u *user) {
		u.define(versioned(withSubresources, ports))
		apply := func(manager, spec string, force bool) (*unstructured.Unstructured, error) {
			return u.widgets().Apply(u.t.Context(), "a", u.object("Widget", "a", "spec: "+spec),
				metav1.ApplyOptions{FieldManager: manager, Force: force})
		}
		_, err := apply("one", `{size: 1, ports: [{name: http, port: 80}]}`, false)
		require.NoError(u.t, err)
		w, err := apply("two", `{ports: [{name: https, port: 443}]}`, false)
		require.NoError(u.t, err)
		require.Len(u.t, field(u.t, w, "spec", "ports"), 2)
		_, err = apply("two", `{ports: [{name: http, port: 81}]}`, false)
		require.True(u.t, apierrors.IsConflict(err), "%v", err)
		require.ErrorContains(u.t, err, `conflict with "one"`)
		w, err = apply("two", `{ports: [{name: http, port: 81}]}`, true)
		require.NoError(u.t, err)
		require.Equal(u.t, []any{map[string]any{"name": "http", "port": int64(81)}}, field(u.t, w, "spec", "ports"), "the field of the previous apply was not removed")
		require.Len(u.t, w.GetManagedFields(), 2)
		w, err = apply("one", `{}`, false)
		require.NoError(u.t, err)
		require.Nil(u.t, field(u.t, w, "spec", "size"))

		_, err = u.widgets().ApplyStatus(u.t.Context(), "a", u.object("Widget", "a", `{status: {phase: Ready}}`), metav1.ApplyOptions{FieldManager: "controller"})
		require.NoError(u.t, err)
		w = u.get(u.widgets(), "a")
		found := false
		for _, m := range w.GetManagedFields() {
			found = found || m.Manager == "controller" && m.Subresource == "status" && m.Operation == metav1.ManagedFieldsOperationApply
		}
		require.True(u.t, found, "%v", w.GetManagedFields())
		_, err = apply("", `{}`, false)
		require.ErrorContains(u.t, err, "fieldManager")
	}},
	{"the scale moves the ownership of the replicas", func(u *user) {
		u.define(versioned(withSubresources))
		_, err := u.widgets().Apply(u.t.Context(), "a", u.object("Widget", "a", `{spec: {size: 1}}`), metav1.ApplyOptions{FieldManager: "one"})
		require.NoError(u.t, err)
		_, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{FieldManager: "scaler"}, "scale")
		require.NoError(u.t, err)
		_, err = u.widgets().Apply(u.t.Context(), "a", u.object("Widget", "a", `{spec: {size: 1}}`), metav1.ApplyOptions{FieldManager: "one"})
		require.True(u.t, apierrors.IsConflict(err), "%v", err)
		require.ErrorContains(u.t, err, "scaler")
	}},
	{"a dry run validates, defaults and returns the result without storing it", func(u *user) {
		u.define(widgets("color: {type: string, default: blue}"))
		dry := []string{metav1.DryRunAll}
		w, err := u.widgets().Create(u.t.Context(), u.object("Widget", "a", `{spec: {size: 1}}`), metav1.CreateOptions{DryRun: dry})
		require.NoError(u.t, err)
		require.Equal(u.t, "blue", field(u.t, w, "spec", "color"))
		_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
		_, err = u.widgets().Create(u.t.Context(), u.object("Widget", "a", `{spec: {size: x}}`), metav1.CreateOptions{DryRun: dry})
		u.requireInvalid(err)

		before := u.widget("a", `{size: 1}`)
		require.Equal(u.t, before.GetAnnotations(), w.GetAnnotations(), "the annotations of the dry run differ")
		w, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{DryRun: dry})
		require.NoError(u.t, err)
		require.Equal(u.t, int64(2), field(u.t, w, "spec", "size"))
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{DryRun: dry}))
		after := u.get(u.widgets(), "a")
		require.Equal(u.t, before, after)
	}},
}
