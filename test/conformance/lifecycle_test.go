package conformance

import (
	"fmt"
	"net/http"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

var lifecycleRules = []rule{
	{"an API can be used straight after its definition was created", func(u *user) {
		inParallel(u.t, 25, func(i int) error {
			plural := fmt.Sprintf("things%d", i)
			// Each has a schema that the server has never seen.
			d := newCRD(u.group, plural, fmt.Sprintf("Thing%d", i), u.parse(widgets(u.name+plural+": {type: string}")).Spec.Versions...)
			if _, err := u.tryDefine(d); err != nil {
				return fmt.Errorf("definition %d: %w", i, err)
			}
			// Half of them are listed first, by a client that does not try again.
			if i%2 == 0 {
				if response, body := u.get("/apis/"+u.group+"/v1/"+plural, "application/json"); response.StatusCode != http.StatusOK {
					return fmt.Errorf("the first list of definition %d answered %d: %s", i, response.StatusCode, body)
				}
			}
			o := u.object(d.Spec.Names.Kind, "a", `{spec: {size: 1}}`).Unstructured
			if _, err := u.resource("v1", plural).Namespace("default").Create(u.t.Context(), o, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("the first object of definition %d: %w", i, err)
			}
			return nil
		})
	}},
	{"deleting a definition deletes its objects first", func(u *user) {
		u.define(widgets())
		for _, name := range []string{"a", "b", "kept"} {
			u.widget(name, `{size: 1}`)
		}
		_, err := u.widgets().Patch(u.t.Context(), "kept", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{})
		require.NoError(u.t, err)
		client := u.crds.ApiextensionsV1().CustomResourceDefinitions()
		require.NoError(u.t, client.Delete(u.t.Context(), "widgets."+u.group, metav1.DeleteOptions{}))
		u.eventually("the objects without finalizers go", func() bool {
			list, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
			require.NoError(u.t, err)
			return len(list.Items) == 1
		})
		u.eventually("the definition tells what it waits for", func() bool {
			return condition(u.definition("widgets"), "Terminating") == "True InstanceDeletionInProgress"
		})
		require.Contains(u.t, u.definition("widgets").Finalizers, "customresourcecleanup.apiextensions.k8s.io")
		_, err = u.tryWidget("late", `{size: 1}`)
		require.True(u.t, apierrors.IsForbidden(err), "%v", err)

		_, err = u.widgets().Patch(u.t.Context(), "kept", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(u.t, err)
		u.eventually("the definition goes", func() bool {
			_, err := client.Get(u.t.Context(), "widgets."+u.group, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		u.eventually("the API goes", func() bool {
			_, err = u.widgets().List(u.t.Context(), metav1.ListOptions{})
			return apierrors.IsNotFound(err)
		})
		theirs, err := u.as("stranger").resource("v1", "widgets").List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Len(u.t, theirs.Items, 1, "objects of others stay")
	}},
	{"a definition can be created again, with another scope and schema", func(u *user) {
		u.define(widgets())
		u.widget("a", `{size: 1}`)
		u.undefine("widgets")
		u.define(`
scope: Cluster
names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
versions:
- {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string}}}}}}}
`)
		all := u.resource("v1", "widgets")
		list, err := all.List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Empty(u.t, list.Items)
		w, err := all.Create(u.t.Context(), u.object("Widget", "a", `{spec: {name: x, size: 1}}`).Unstructured, metav1.CreateOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, map[string]any{"name": "x"}, field(u.t, w, "spec"))
		_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "there are no namespaces any more: %v", err)
	}},
	{"watches go on over changes of the schema, and show what it makes of objects", func(u *user) {
		u.define(widgets())
		u.widget("a", `{size: 1}`)
		list, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		w, err := u.widgets().Watch(u.t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		require.NoError(u.t, err)
		u.redefine("widgets", func(d *crd) {
			spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			spec.Properties["color"] = props{Type: "string", Default: jsonOf(`"blue"`)}
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		})
		// A server may end watches; clients then resume from where they were.
		resumed := func() {
			u.eventually("the watch with the old schema ends", func() bool {
				select {
				case _, ok := <-w.ResultChan():
					return !ok
				default:
					return false
				}
			})
			w.Stop()
			w, err = u.widgets().Watch(u.t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
			require.NoError(u.t, err)
		}
		resumed()
		defer w.Stop()
		u.widget("b", `{size: 1}`)
		event := u.next(w, watch.Added, "b")
		require.Equal(u.t, "blue", field(u.t, asObject(u.t, event), "spec", "color"))
	}},
	{"an object that no longer fits its schema can be read, mended and deleted", func(u *user) {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1, color: red}`)
		u.widget("b", `{size: 1, color: red}`)
		u.redefine("widgets", func(d *crd) {
			spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			spec.Properties["color"] = props{Type: "object", Properties: map[string]props{"rgb": {Type: "string"}}}
			spec.Required = []string{"weight"}
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		})
		list, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Len(u.t, list.Items, 2)
		_, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"color":7}}`), metav1.PatchOptions{})
		u.invalid(err, "spec.color")
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{}))
		require.NoError(u.t, u.widgets().DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}},
	{"a definition that is deleted with its collection takes its objects with it", func(u *user) {
		d := u.parse(widgets())
		d.Labels = map[string]string{"of": u.group}
		_, err := u.tryDefine(d)
		require.NoError(u.t, err)
		u.widget("a", `{size: 1}`)
		client := u.crds.ApiextensionsV1().CustomResourceDefinitions()
		require.NoError(u.t, client.DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "of=" + u.group}))
		u.eventually("the definition goes", func() bool {
			_, err := client.Get(u.t.Context(), d.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		u.define(widgets())
		list, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Empty(u.t, list.Items)
	}},
}
