package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func asObject(t *testing.T, event watch.Event) *unstructured.Unstructured {
	t.Helper()
	o, ok := event.Object.(*unstructured.Unstructured)
	require.True(t, ok, "%T", event.Object)
	return o
}

const ports = "ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}}"

var writeRules = []rule{
	{"JSON patches, merge patches and server-side apply are for custom resources, strategic merge patches are not", func(u *user) {
		u.define(widgets("tags: {type: array, items: {type: string}}"))
		u.widget("a", `{size: 1, tags: [x]}`)
		w, err := u.widgets().Patch(u.t.Context(), "a", types.JSONPatchType,
			[]byte(`[{"op":"test","path":"/spec/size","value":1},{"op":"add","path":"/spec/tags/-","value":"y"}]`), metav1.PatchOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, []any{"x", "y"}, field(u.t, w, "spec", "tags"))
		_, err = u.widgets().Patch(u.t.Context(), "a", types.JSONPatchType, []byte(`[{"op":"test","path":"/spec/size","value":2}]`), metav1.PatchOptions{})
		u.invalid(err)
		w, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"tags":null,"size":2}}`), metav1.PatchOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, map[string]any{"size": int64(2)}, field(u.t, w, "spec"))
		_, err = u.widgets().Patch(u.t.Context(), "a", types.StrategicMergePatchType, []byte(`{"spec":{}}`), metav1.PatchOptions{})
		require.True(u.t, apierrors.IsUnsupportedMediaType(err), "%v", err)
		_, err = u.widgets().Patch(u.t.Context(), "none", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
	}},
	{"field managers own what they apply, entry by entry", func(u *user) {
		u.define(versioned(withSubresources, ports))
		apply := func(manager, spec string, force bool) (*unstructured.Unstructured, error) {
			return u.widgets().Apply(u.t.Context(), "a", u.object("Widget", "a", "spec: "+spec).Unstructured,
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
		require.Equal(u.t, []any{map[string]any{"name": "http", "port": int64(81)}}, field(u.t, w, "spec", "ports"), "what two applied before is gone")
		require.Len(u.t, w.GetManagedFields(), 2)
		w, err = apply("one", `{}`, false)
		require.NoError(u.t, err)
		require.Nil(u.t, field(u.t, w, "spec", "size"))

		_, err = u.widgets().ApplyStatus(u.t.Context(), "a", u.object("Widget", "a", `{status: {phase: Ready}}`).Unstructured, metav1.ApplyOptions{FieldManager: "controller"})
		require.NoError(u.t, err)
		w, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err)
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
		_, err := u.widgets().Apply(u.t.Context(), "a", u.object("Widget", "a", `{spec: {size: 1}}`).Unstructured, metav1.ApplyOptions{FieldManager: "one"})
		require.NoError(u.t, err)
		_, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{FieldManager: "scaler"}, "scale")
		require.NoError(u.t, err)
		_, err = u.widgets().Apply(u.t.Context(), "a", u.object("Widget", "a", `{spec: {size: 1}}`).Unstructured, metav1.ApplyOptions{FieldManager: "one"})
		require.True(u.t, apierrors.IsConflict(err), "%v", err)
		require.ErrorContains(u.t, err, "scaler")
	}},
	{"a dry run validates, defaults and answers, and stores nothing", func(u *user) {
		u.define(widgets("color: {type: string, default: blue}"))
		dry := []string{metav1.DryRunAll}
		w, err := u.widgets().Create(u.t.Context(), u.object("Widget", "a", `{spec: {size: 1}}`).Unstructured, metav1.CreateOptions{DryRun: dry})
		require.NoError(u.t, err)
		require.Equal(u.t, "blue", field(u.t, w, "spec", "color"))
		_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
		_, err = u.widgets().Create(u.t.Context(), u.object("Widget", "a", `{spec: {size: x}}`).Unstructured, metav1.CreateOptions{DryRun: dry})
		u.invalid(err)

		before := u.widget("a", `{size: 1}`)
		require.Equal(u.t, before.GetAnnotations(), w.GetAnnotations(), "it answers as if it were none")
		w, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{DryRun: dry})
		require.NoError(u.t, err)
		require.Equal(u.t, int64(2), field(u.t, w, "spec", "size"))
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{DryRun: dry}))
		after, err := u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, before, after)
	}},
	{"a dry run of a definition answers, and defines nothing", func(u *user) {
		u.needsDefinitions()
		u.define(widgets())
		dry := []string{metav1.DryRunAll}
		d := u.parse(gadgets("{plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}"))
		tried, err := u.crds.ApiextensionsV1().CustomResourceDefinitions().Create(u.t.Context(), d, metav1.CreateOptions{DryRun: dry})
		require.NoError(u.t, err)
		stored, err := u.crds.ApiextensionsV1().CustomResourceDefinitions().Get(u.t.Context(), "widgets."+u.group, metav1.GetOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, stored.Annotations, tried.Annotations)
		_, err = u.resource("v1", "gadgets").List(u.t.Context(), metav1.ListOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
	}},
	{"collections are deleted by label, in one namespace", func(u *user) {
		u.define(widgets())
		for i, ns := range []string{"default", "default", "other"} {
			w := u.object("Widget", fmt.Sprintf("w%d", i), `{metadata: {labels: {a: "`+fmt.Sprint(i%2)+`"}}}`).Unstructured
			_, err := u.resource("v1", "widgets").Namespace(ns).Create(u.t.Context(), w, metav1.CreateOptions{})
			require.NoError(u.t, err)
		}
		require.NoError(u.t, u.widgets().DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a=0"}))
		list, err := u.resource("v1", "widgets").List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Len(u.t, list.Items, 2, "the one in the other namespace is left too")
	}},
	{"names are generated", func(u *user) {
		u.define(widgets())
		seen := map[string]bool{}
		for range 3 {
			w, err := u.widgets().Create(u.t.Context(), u.object("Widget", "", `{metadata: {generateName: made-}}`).Unstructured, metav1.CreateOptions{})
			require.NoError(u.t, err)
			require.True(u.t, strings.HasPrefix(w.GetName(), "made-") && len(w.GetName()) > 5, w.GetName())
			seen[w.GetName()] = true
		}
		require.Len(u.t, seen, 3)
		_, err := u.tryWidget("", `{}`)
		u.invalid(err, "name or generateName is required")
	}},
	{"finalizers hold an object back until they are gone", func(u *user) {
		u.define(widgets())
		w := u.object("Widget", "a", `{metadata: {finalizers: [example.com/hold]}}`).Unstructured
		created, err := u.widgets().Create(u.t.Context(), w, metav1.CreateOptions{})
		require.NoError(u.t, err)
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{}))
		held, err := u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err)
		require.NotNil(u.t, held.GetDeletionTimestamp())
		require.Equal(u.t, created.GetUID(), held.GetUID())
		held.SetFinalizers([]string{"example.com/hold", "example.com/more"})
		_, err = u.widgets().Update(u.t.Context(), held, metav1.UpdateOptions{})
		u.invalid(err, "no new finalizers")
		held.SetFinalizers(nil)
		_, err = u.widgets().Update(u.t.Context(), held, metav1.UpdateOptions{})
		require.NoError(u.t, err)
		_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
	}},
	{"owner references are kept and validated", func(u *user) {
		u.define(widgets())
		owner := u.widget("owner", `{size: 1}`)
		yes := true
		w := u.object("Widget", "a", `{}`).Unstructured
		w.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: "Widget", Name: "owner", UID: owner.GetUID(), Controller: &yes}})
		created, err := u.widgets().Create(u.t.Context(), w, metav1.CreateOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, w.GetOwnerReferences(), created.GetOwnerReferences())
		w.SetName("b")
		w.SetOwnerReferences(append(w.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "y", Controller: &yes}))
		_, err = u.widgets().Create(u.t.Context(), w, metav1.CreateOptions{})
		u.invalid(err, "Only one reference can have Controller set to true")
	}},
	{"updates of an old state conflict, and preconditions are held", func(u *user) {
		u.define(widgets())
		old := u.widget("a", `{size: 1}`)
		_, err := u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{})
		require.NoError(u.t, err)
		_, err = u.widgets().Update(u.t.Context(), old, metav1.UpdateOptions{})
		require.True(u.t, apierrors.IsConflict(err), "%v", err)
		wrong := types.UID("wrong")
		err = u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
		require.True(u.t, apierrors.IsConflict(err), "%v", err)
		_, err = u.tryWidget("a", `{size: 1}`)
		require.True(u.t, apierrors.IsAlreadyExists(err), "%v", err)
	}},
	{"lists come in pages of one state", func(u *user) {
		u.define(widgets())
		for i := range 7 {
			u.widget(fmt.Sprintf("w%d", i), `{size: 1}`)
		}
		page, err := u.widgets().List(u.t.Context(), metav1.ListOptions{Limit: 3})
		require.NoError(u.t, err)
		u.widget("later", `{size: 1}`)
		names, state := []string{}, page.GetResourceVersion()
		for {
			require.Equal(u.t, state, page.GetResourceVersion())
			for i := range page.Items {
				names = append(names, page.Items[i].GetName())
			}
			if page.GetContinue() == "" {
				break
			}
			page, err = u.widgets().List(u.t.Context(), metav1.ListOptions{Limit: 3, Continue: page.GetContinue()})
			require.NoError(u.t, err)
		}
		require.Equal(u.t, []string{"w0", "w1", "w2", "w3", "w4", "w5", "w6"}, names)
	}},
}
