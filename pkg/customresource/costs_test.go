package customresource

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
)

// costly returns properties that multiply the items of lists.
func costly() map[string]apiextensionsv1.JSONSchemaProps {
	list := func(item apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &item}}
	}
	var alternatives []apiextensionsv1.JSONSchemaProps
	for i := range 100 {
		alternatives = append(alternatives, apiextensionsv1.JSONSchemaProps{Required: []string{fmt.Sprint("k", i)}})
	}
	set := list(apiextensionsv1.JSONSchemaProps{Type: "string"})
	set.XListType = new("set")
	return map[string]apiextensionsv1.JSONSchemaProps{
		"defaulted": list(apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"text": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"` + strings.Repeat("x", 4000) + `"`)}},
		}}),
		"chosen":   list(apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true), AnyOf: alternatives}),
		"required": list(apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true), Required: []string{"x"}}),
		"set":      set,
		"ruled":    list(apiextensionsv1.JSONSchemaProps{Type: "integer", XValidations: apiextensionsv1.ValidationRules{{Rule: "self > 1"}}}),
		"enum":     list(apiextensionsv1.JSONSchemaProps{Type: "string", Enum: largeEnum()}),
		"least":    list(apiextensionsv1.JSONSchemaProps{Type: "integer", Minimum: new(float64(1))}),
		"embedded": list(apiextensionsv1.JSONSchemaProps{Type: "object", XEmbeddedResource: true, XPreserveUnknownFields: new(true)}),
		"plain":    list(apiextensionsv1.JSONSchemaProps{Type: "integer"}),
	}
}

// largeEnum returns values of 500 KB.
func largeEnum() (values []apiextensionsv1.JSON) {
	for i := range 500 {
		values = append(values, apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `"%d%s"`, i, strings.Repeat("x", 1000))})
	}
	return values
}

func listOf(n int, item func(i int) any) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = item(i)
	}
	return list
}

func empty(int) any { return map[string]any{} }

func distinct(i int) any { return fmt.Sprint("s", i) }

func tooLarge(t *testing.T, err error, message string) {
	t.Helper()
	require.True(t, apierrors.IsRequestEntityTooLargeError(err), "%v", err)
	require.ErrorContains(t, err, message)
}

// TestCosts limits the server's work in proportion to the size of a request.
func TestCosts(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "one", widgetCRD(costly()))
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	create := func(name, field string, list []any) error {
		_, err := client.Create(t.Context(), widget(name, map[string]any{field: list}), metav1.CreateOptions{})
		return err
	}
	require.NoError(t, create("patched", "set", listOf(10, distinct)))
	t.Run("defaults", func(t *testing.T) {
		tooLarge(t, create("defaults", "defaulted", listOf(60_000, empty)), "defaults in the schema add more than")
		require.NoError(t, create("defaults", "defaulted", listOf(100, empty)))
		for media, patch := range map[types.PatchType]string{
			types.MergePatchType: `{"spec":{"defaulted":[%s]}}`,
			types.JSONPatchType:  `[{"op":"add","path":"/spec/defaulted","value":[%s]}]`,
		} {
			body := fmt.Appendf(nil, patch, strings.TrimSuffix(strings.Repeat("{},", 60_000), ","))
			_, err := client.Patch(t.Context(), "patched", media, body, metav1.PatchOptions{})
			tooLarge(t, err, "defaults in the schema add more than")
		}
		_, err := client.Patch(t.Context(), "patched", types.JSONPatchType, []byte(`[{"op":"copy","path":"/spec/defaulted","from":"/spec/set"}]`), metav1.PatchOptions{})
		tooLarge(t, err, "use the operation add")
		large := widget("applied", map[string]any{"defaulted": listOf(60_000, empty)})
		_, err = client.Apply(t.Context(), "applied", large, metav1.ApplyOptions{FieldManager: "m"})
		tooLarge(t, err, "defaults in the schema add more than")
	})
	t.Run("alternatives", func(t *testing.T) {
		one := func(int) any { return map[string]any{"k99": int64(1)} }
		tooLarge(t, create("alternatives", "chosen", listOf(30_000, one)), "comparisons of values with schemas")
		require.NoError(t, create("alternatives", "chosen", listOf(1000, one)))
	})
	t.Run("keyed", func(t *testing.T) {
		tooLarge(t, create("keyed", "set", listOf(6000, distinct)), "at most 5000 allowed")
		tooLarge(t, create("keyed", "set", listOf(100_000, distinct)), "at most 5000 allowed")
		require.NoError(t, create("keyed", "set", listOf(5000, distinct)))
		_, err := client.Patch(t.Context(), "keyed", types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/set/-","value":"more"}]`), metav1.PatchOptions{})
		tooLarge(t, err, "at most 5000 allowed")
	})
	t.Run("errors", func(t *testing.T) {
		err := create("errors", "required", listOf(100_000, empty))
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, "there are more errors")
		status, ok := err.(apierrors.APIStatus)
		require.True(t, ok)
		require.Len(t, status.Status().Details.Causes, 100)
	})
	t.Run("errors of several kinds", func(t *testing.T) {
		zero, two := func(int) any { return int64(0) }, func(int) any { return int64(2) }
		twice := func(i int) any { return fmt.Sprint("s", i/2) }
		nameless := func(int) any { return map[string]any{"apiVersion": "v1"} }
		for name, c := range map[string]struct {
			spec   map[string]any
			causes int
		}{
			"few":              {map[string]any{"ruled": listOf(40, zero), "set": listOf(80, twice)}, 80},
			"lists":            {map[string]any{"set": listOf(5000, twice)}, 100},
			"embedded objects": {map[string]any{"embedded": listOf(20_000, nameless)}, 100},
			"lists and rules":  {map[string]any{"ruled": listOf(60, zero), "set": listOf(120, twice)}, 100},
			"shape and rules":  {map[string]any{"ruled": listOf(60, zero), "least": listOf(60, zero)}, 100},
			"unchecked rules":  {map[string]any{"ruled": listOf(100, zero), "required": listOf(60, empty)}, 61},
			"all":              {map[string]any{"ruled": listOf(90, zero), "set": listOf(180, twice), "least": listOf(90, zero)}, 100},
		} {
			c.spec["plain"] = listOf(2000, two)
			_, err := client.Create(t.Context(), widget("several", c.spec), metav1.CreateOptions{})
			require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
			status, ok := err.(apierrors.APIStatus)
			require.True(t, ok)
			require.Len(t, status.Status().Details.Causes, c.causes, name)
		}
		invalid := widget("several", map[string]any{"ruled": listOf(60, zero), "plain": listOf(2000, two)})
		labels := map[string]string{}
		for i := range 60 {
			labels[fmt.Sprint("!", i)] = ""
		}
		invalid.SetLabels(labels)
		_, err := client.Create(t.Context(), invalid, metav1.CreateOptions{})
		require.ErrorContains(t, err, "there are more errors")
	})
	t.Run("rules", func(t *testing.T) {
		zero := func(int) any { return int64(0) }
		err := create("rules", "ruled", listOf(10_000, zero))
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, "there are more errors")
		status, ok := err.(apierrors.APIStatus)
		require.True(t, ok)
		require.Len(t, status.Status().Details.Causes, 100)
		require.NoError(t, create("rules", "ruled", listOf(10_000, func(int) any { return int64(2) })))
		err = create("few", "ruled", append(listOf(10_000, func(int) any { return int64(2) }), int64(0)))
		require.ErrorContains(t, err, "spec.ruled[10000]: Invalid value: 0: failed rule: self > 1")
		_, err = client.Patch(t.Context(), "rules", types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/ruled/-","value":3}]`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	t.Run("enums", func(t *testing.T) {
		tooLarge(t, create("enums", "enum", listOf(100, distinct)), "comparisons of values with schemas")
		err := create("enums", "enum", listOf(10, distinct))
		require.True(t, apierrors.IsInvalid(err), "%v", err)
	})
	t.Run("status", func(t *testing.T) {
		// Data that is not written is not checked.
		w := mustGet(t, client, "patched")
		require.NoError(t, unstructured.SetNestedSlice(w.Object, listOf(2000, empty), "spec", "required"))
		require.NoError(t, unstructured.SetNestedField(w.Object, "done", "status", "phase"))
		_, err := client.UpdateStatus(t.Context(), w, metav1.UpdateOptions{})
		require.NoError(t, err)
	})
}

// TestRatchetedErrors checks that an update of a large object reports only errors that the object did not have.
func TestRatchetedErrors(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	crd := s.CreateCRD(t, "one", widgetCRD(costly()))
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	zero, two := func(int) any { return int64(0) }, func(int) any { return int64(2) }
	mustCreate(t, client, widget("a", map[string]any{"plain": listOf(200, zero), "ruled": listOf(2000, two)}))
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["plain"].Items.Schema.Minimum = new(float64(1))
	_, err := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions().Update(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	patch := func(list string, n int) error {
		body := `{"spec":{"` + list + `":[` + strings.TrimSuffix(strings.Repeat("-1,", n), ",") + `]}}`
		_, err := client.Patch(t.Context(), "a", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	require.Eventually(t, func() bool { return patch("plain", 1) != nil }, deadline, tick, "the new schema must be served")
	mustPatch(t, client, "a", `{"metadata":{"labels":{"a":"b"}}}`)
	for list, c := range map[string]struct{ invalid, causes int }{"ruled": {1, 1}, "plain": {150, 100}, "least": {150, 100}} {
		status, ok := patch(list, c.invalid).(apierrors.APIStatus)
		require.True(t, ok, list)
		require.Len(t, status.Status().Details.Causes, c.causes, list)
	}
}

// TestPatternCosts limits the instructions of the regular expressions of a definition.
func TestPatternCosts(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	t.Run("pattern", func(t *testing.T) {
		text := apiextensionsv1.JSONSchemaProps{Type: "string", Pattern: "(a?){600}c$"}
		s.CreateCRD(t, "one", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"texts": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}}}))
		client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
		_, err := client.Create(t.Context(), widget("long", map[string]any{"texts": []any{strings.Repeat("a", 1_000_000) + "c"}}), metav1.CreateOptions{})
		tooLarge(t, err, "instructions of regular expressions")
		_, err = client.Create(t.Context(), widget("patched", map[string]any{"texts": []any{strings.Repeat("a", 10_000) + "c"}}), metav1.CreateOptions{})
		require.NoError(t, err)
		// The strings are long after the patch was applied.
		patch := "[" + strings.TrimSuffix(strings.Repeat(`{"op":"copy","path":"/spec/texts/-","from":"/spec/texts/0"},`, 30), ",") + "]"
		_, err = client.Patch(t.Context(), "patched", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		tooLarge(t, err, "instructions of regular expressions")
	})
	t.Run("rule", func(t *testing.T) {
		text := apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: new(int64(100)), XValidations: apiextensionsv1.ValidationRules{{Rule: "'a'.matches(self)"}}}
		s.CreateCRD(t, "two", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"text": text}))
		client := s.Dynamic(t, "two").Resource(widgets).Namespace("default")
		_, err := client.Create(t.Context(), widget("large", map[string]any{"text": "a{0,1000}a{0,1000}"}), metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, "at most 2500 allowed")
		_, err = client.Create(t.Context(), widget("small", map[string]any{"text": "a{0,1000}"}), metav1.CreateOptions{})
		require.NoError(t, err)
	})
}

// adding is an admission plugin that adds items to objects, and defaults to the items, like webhooks.
type adding struct {
	*admission.Handler
	items int
}

func (m adding) Admit(_ context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	u, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	if err := unstructured.SetNestedSlice(u.Object, listOf(m.items, empty), "spec", "defaulted"); err != nil {
		return err
	}
	o.GetObjectDefaulter().Default(u)
	return nil
}

// TestCostsOfAdmission limits defaults of objects changed by admission.
func TestCostsOfAdmission(t *testing.T) {
	t.Parallel()
	for items, ok := range map[int]bool{100: true, 60_000: false} {
		s := startServer(t, serverOptions{admission: adding{admission.NewHandler(admission.Create), items}})
		s.CreateCRD(t, "one", widgetCRD(costly()))
		created, err := s.Dynamic(t, "one").Resource(widgets).Namespace("default").Create(t.Context(), widget("one", nil), metav1.CreateOptions{})
		if !ok {
			require.True(t, apierrors.IsRequestEntityTooLargeError(err), "%v", err)
			require.ErrorContains(t, err, "the defaults in the schema add more than")
			continue
		}
		require.NoError(t, err)
		list, _, err := unstructured.NestedSlice(created.Object, "spec", "defaulted")
		require.NoError(t, err)
		require.Len(t, list, items)
		require.NotEmpty(t, list[0], "defaults must be set")
	}
}
