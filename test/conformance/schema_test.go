package conformance

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

var schemaRules = []rule{
	{"a definition needs a structural schema", func(u *user) {
		d := u.parse(widgets())
		d.Spec.Versions[0].Schema = nil
		u.rejectDefinition(d, "spec.versions[0].schema.openAPIV3Schema: Required value")

		d = u.parse(widgets())
		root := d.Spec.Versions[0].Schema.OpenAPIV3Schema
		root.Properties["spec"] = props{Properties: map[string]props{"a": {Type: "string"}}}
		u.rejectDefinition(d, "openAPIV3Schema.properties[spec].type: Required value")

		d = u.parse(widgets())
		root = d.Spec.Versions[0].Schema.OpenAPIV3Schema
		root.AnyOf = []props{{Properties: map[string]props{"unknown": {Type: "string"}}}}
		u.rejectDefinition(d, "anyOf[0]")
	}},
	{"unknown fields are pruned, except where they are preserved", func(u *user) {
		u.define(widgets("open: {type: object, x-kubernetes-preserve-unknown-fields: true}", "raw: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}"))
		u.widget("a", `{size: 1, nonsense: 2, open: {kept: {deep: [1]}}, raw: {apiVersion: v1, kind: X, metadata: {name: x, nonsense: x}, any: 1}}`)
		w := u.get(u.widgets(), "a")
		require.Nil(u.t, field(u.t, w, "spec", "nonsense"))
		require.Equal(u.t, []any{int64(1)}, field(u.t, w, "spec", "open", "kept", "deep"))
		require.Nil(u.t, field(u.t, w, "spec", "raw", "metadata", "nonsense"), "unknown metadata of an embedded object was not pruned")
		require.Equal(u.t, int64(1), field(u.t, w, "spec", "raw", "any"))
	}},
	{"defaults are applied to requests and to stored objects", func(u *user) {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1}`)
		u.redefine("widgets", setProperty("color", props{Type: "string", Default: jsonOf(`"blue"`)}))
		w := u.get(u.widgets(), "a")
		require.Equal(u.t, "blue", field(u.t, w, "spec", "color"))
		require.Equal(u.t, "blue", field(u.t, u.widget("b", `{size: 1}`), "spec", "color"))
		require.Equal(u.t, "red", field(u.t, u.widget("c", `{color: red}`), "spec", "color"))
		list := u.list(u.widgets(), metav1.ListOptions{})
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
		u.rejectDefinition(u.parse(widgets("color: {type: string, default: 5}")), "default", "must be of type string")
	}},
	{"field validation rejects, warns of, or ignores unknown and duplicate fields", func(u *user) {
		u.define(widgets())
		draft := u.object("Widget", "strict", `{spec: {size: 1, nonsense: 2}}`)
		_, err := u.widgets().Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Strict"})
		require.True(u.t, apierrors.IsBadRequest(err), "%v", err)
		require.ErrorContains(u.t, err, `unknown field "spec.nonsense"`)

		client, taken := u.withWarnings()
		draft.SetName("warn")
		_, err = client.Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Warn"})
		require.NoError(u.t, err)
		require.Contains(u.t, taken(), `unknown field "spec.nonsense"`)
		draft.SetName("ignore")
		_, err = client.Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Ignore"})
		require.NoError(u.t, err)
		require.Empty(u.t, taken())

		twice := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"twice"},"spec":{"size":1,"size":2}}`, u.group)
		err = u.crds.ApiextensionsV1().RESTClient().Post().AbsPath("/apis", u.group, "v1", "namespaces", "default", "widgets").
			Param("fieldValidation", "Strict").Body([]byte(twice)).Do(u.t.Context()).Error()
		require.ErrorContains(u.t, err, `duplicate field "spec.size"`)
		_, err = client.Create(u.t.Context(), draft, metav1.CreateOptions{FieldValidation: "Sometimes"})
		require.Error(u.t, err)
	}},
	{"field validation also applies to updates, patches and server-side apply", func(u *user) {
		u.define(widgets())
		w := u.widget("a", `{size: 1}`)
		client, taken := u.withWarnings()
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
			require.Equal(u.t, validation == "Warn", strings.Contains(taken(), `unknown field "spec.nonsense"`), validation)
			// Server-side apply rejects unknown fields regardless of the field validation.
			_, err := client.Patch(u.t.Context(), "a", types.ApplyPatchType, data, metav1.PatchOptions{FieldValidation: validation, FieldManager: "me"})
			require.ErrorContains(u.t, err, "field not declared in schema", validation)
			taken()
		}
	}},
}

// withWarnings returns a client of widgets, and a function that returns the warnings since its last
// call.
func (u *user) withWarnings() (client dynamic.ResourceInterface, taken func() string) {
	u.t.Helper()
	collected := &harness.Warnings{}
	config := rest.CopyConfig(u.config)
	config.WarningHandlerWithContext = collected
	c, err := dynamic.NewForConfig(config)
	require.NoError(u.t, err)
	widgets := c.Resource(schema.GroupVersionResource{Group: u.group, Version: "v1", Resource: "widgets"}).Namespace("default")
	return widgets, func() string { return strings.Join(collected.Take(), "\n") }
}
