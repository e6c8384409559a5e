package conformance

import (
	"fmt"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var schemaRules = []rule{
	{"a definition needs a structural schema", func(u *user) {
		d := u.parse(widgets())
		d.Spec.Versions[0].Schema = nil
		u.refuse(d, "spec.versions[0].schema.openAPIV3Schema: Required value")

		d = u.parse(widgets())
		root := d.Spec.Versions[0].Schema.OpenAPIV3Schema
		root.Properties["spec"] = props{Properties: map[string]props{"a": {Type: "string"}}}
		u.refuse(d, "openAPIV3Schema.properties[spec].type: Required value")

		d = u.parse(widgets())
		root = d.Spec.Versions[0].Schema.OpenAPIV3Schema
		root.AnyOf = []props{{Properties: map[string]props{"unknown": {Type: "string"}}}}
		u.refuse(d, "anyOf[0]")
	}},
	{"unknown fields are pruned, except where they are preserved", func(u *user) {
		u.define(widgets("open: {type: object, x-kubernetes-preserve-unknown-fields: true}", "raw: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}"))
		u.widget("a", `{size: 1, nonsense: 2, open: {kept: {deep: [1]}}, raw: {apiVersion: v1, kind: X, metadata: {name: x, nonsense: x}, any: 1}}`)
		w, err := u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err)
		require.Nil(u.t, field(u.t, w, "spec", "nonsense"))
		require.Equal(u.t, []any{int64(1)}, field(u.t, w, "spec", "open", "kept", "deep"))
		require.Nil(u.t, field(u.t, w, "spec", "raw", "metadata", "nonsense"), "metadata of embedded objects is known")
		require.Equal(u.t, int64(1), field(u.t, w, "spec", "raw", "any"))
	}},
	{"defaults are set on requests, and on what was stored before them", func(u *user) {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1}`)
		u.redefine("widgets", func(d *crd) {
			spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			color := spec.Properties["color"]
			color.Default = jsonOf(`"blue"`)
			spec.Properties["color"] = color
		})
		w, err := u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, "blue", field(u.t, w, "spec", "color"))
		require.Equal(u.t, "blue", field(u.t, u.widget("b", `{size: 1}`), "spec", "color"))
		require.Equal(u.t, "red", field(u.t, u.widget("c", `{color: red}`), "spec", "color"))
		list, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, "blue", field(u.t, &list.Items[0], "spec", "color"))
	}},
	{"null is pruned where a default applies and kept where it is allowed", func(u *user) {
		u.define(widgets("color: {type: string, default: blue}", "free: {type: string, nullable: true, default: x}"))
		w := u.widget("a", `{color: null, free: null}`)
		require.Equal(u.t, "blue", field(u.t, w, "spec", "color"))
		require.Contains(u.t, field(u.t, w, "spec"), "free")
		require.Nil(u.t, field(u.t, w, "spec", "free"))
	}},
	{"defaults must be valid", func(u *user) {
		u.refuse(u.parse(widgets("color: {type: string, default: 5}")), "default", "must be of type string")
	}},
	{"field validation refuses, warns of, or ignores unknown and duplicate fields", func(u *user) {
		u.define(widgets())
		draft := u.object("Widget", "strict", `{spec: {size: 1, nonsense: 2}}`).Unstructured
		_, err := u.widgets().Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Strict"})
		require.True(u.t, apierrors.IsBadRequest(err), "%v", err)
		require.ErrorContains(u.t, err, `unknown field "spec.nonsense"`)

		client, said := u.listening()
		draft.SetName("warn")
		_, err = client.Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Warn"})
		require.NoError(u.t, err)
		require.Contains(u.t, said(), `unknown field "spec.nonsense"`)
		draft.SetName("ignore")
		_, err = client.Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Ignore"})
		require.NoError(u.t, err)
		require.Empty(u.t, said())

		twice := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"twice"},"spec":{"size":1,"size":2}}`, u.group)
		err = u.crds.ApiextensionsV1().RESTClient().Post().AbsPath("/apis", u.group, "v1", "namespaces", "default", "widgets").
			Param("fieldValidation", "Strict").Body([]byte(twice)).Do(u.t.Context()).Error()
		require.ErrorContains(u.t, err, `duplicate field "spec.size"`)
		_, err = client.Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Sometimes"})
		require.Error(u.t, err)
	}},
	{"field validation is for updates, patches and server-side apply too", func(u *user) {
		u.define(widgets())
		w := u.widget("a", `{size: 1}`)
		client, said := u.listening()
		unknown := []byte(`{"spec":{"nonsense":1}}`)
		w.Object["spec"] = map[string]any{"size": int64(2), "nonsense": int64(1)}
		applied := u.object("Widget", "a", `{spec: {nonsense: 1}}`)
		data, err := applied.MarshalJSON()
		require.NoError(u.t, err)
		for validation, refuses := range map[string]bool{"Strict": true, "Warn": false, "Ignore": false} {
			_, updated := client.Update(u.t.Context(), w.DeepCopy(), metav1.UpdateOptions{FieldValidation: validation, DryRun: []string{metav1.DryRunAll}})
			_, patched := client.Patch(u.t.Context(), "a", types.MergePatchType, unknown, metav1.PatchOptions{FieldValidation: validation})
			for _, err := range []error{updated, patched} {
				if refuses {
					require.ErrorContains(u.t, err, `unknown field "spec.nonsense"`)
				} else {
					require.NoError(u.t, err)
				}
			}
			require.Equal(u.t, validation == "Warn", strings.Contains(said(), `unknown field "spec.nonsense"`), validation)
			// What is applied must fit the schema, whatever validation is asked for.
			_, err := client.Patch(u.t.Context(), "a", types.ApplyPatchType, data, metav1.PatchOptions{FieldValidation: validation, FieldManager: "me"})
			require.ErrorContains(u.t, err, "field not declared in schema", validation)
			said()
		}
	}},
}

// listening is the widgets by a client that keeps the warnings it gets; said
// returns those since it was called last.
func (u *user) listening() (client dynamic.ResourceInterface, said func() string) {
	u.t.Helper()
	heard := &warnings{}
	config := rest.CopyConfig(u.config)
	config.WarningHandler = heard
	c, err := dynamic.NewForConfig(config)
	require.NoError(u.t, err)
	return c.Resource(schema.GroupVersionResource{Group: u.group, Version: "v1", Resource: "widgets"}).Namespace("default"), heard.take
}

type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.texts, "\n")
	w.texts = nil
	return all
}
