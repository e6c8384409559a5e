package customresource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// twoVersions returns a definition of widgets with the stored version v1, and v2.
func twoVersions(conversion *apiextensionsv1.CustomResourceConversion) *apiextensionsv1.CustomResourceDefinition {
	crd := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"a": {Type: "string"}})
	v2 := crd.Spec.Versions[0].DeepCopy()
	v2.Name, v2.Storage = "v2", false
	crd.Spec.Versions = append(crd.Spec.Versions, *v2)
	crd.Spec.Conversion = conversion
	apiextensionsserver.Scheme.Default(crd)
	return crd
}

// converter adds the original version to objects, and counts.
type converter struct {
	calls atomic.Int64
	fails atomic.Bool
}

func (c *converter) convert(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	c.calls.Add(1)
	if in.GetLabels()["bad"] != "" || c.fails.Load() {
		return nil, errors.New("not convertible")
	}
	out := in.DeepCopy()
	out.SetAPIVersion(to)
	annotations := out.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations["from"] = in.GetAPIVersion()
	out.SetAnnotations(annotations)
	out.SetFinalizers([]string{"example.org/smuggled"})
	return out, nil
}

// TestConvertedSchema: all verbs use the conversion function of a schema, and objects that cannot be converted
// are rejected.
func TestConvertedSchema(t *testing.T) {
	t.Parallel()
	var c converter
	crd := twoVersions(&apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter})
	sch, err := definitions.NewConvertedSchema(&crd.Spec, &crd.Spec.Names, "one", c.convert)
	require.NoError(t, err)
	plain := schemaOf(t, crd)
	require.NotEqual(t, plain.Hash, sch.Hash)
	s := startServer(t, serverOptions{sources: []definitions.Source{newBoundAPIs(map[string]boundAPI{"one": {sch, "h"}, "two": {plain, "h"}})}})
	second := widgets.GroupResource().WithVersion("v2")
	v1, v2 := s.Dynamic(t, "one").Resource(widgets).Namespace("default"), s.Dynamic(t, "one").Resource(second).Namespace("default")
	group := widgets.Group

	made := mustCreate(t, v2, versioned(widget("a", nil), group+"/v2"))
	require.Equal(t, group+"/v1", made.GetAnnotations()["from"])
	require.Empty(t, made.GetFinalizers())
	got := mustGet(t, v1, "a")
	require.Equal(t, group+"/v2", got.GetAnnotations()["from"])
	list := mustList(t, v2, metav1.ListOptions{})
	require.Equal(t, group+"/v1", list.Items[0].GetAnnotations()["from"])
	before := c.calls.Load()
	mustList(t, v2, metav1.ListOptions{})
	require.Equal(t, before, c.calls.Load(), "the converted object must be cached")
	other := mustCreate(t, s.Dynamic(t, "two").Resource(second).Namespace("default"), versioned(widget("a", nil), group+"/v2"))
	require.NotContains(t, other.GetAnnotations(), "from")

	mustCreate(t, v1, widget("b", nil))
	read := mustGet(t, v2, "b")
	written := mustUpdate(t, v2, read)
	require.Equal(t, read, written, "an unchanged object must not be converted back")
	written = mustPatch(t, v2, "b", `{"metadata":{"labels":{"a":"b"}}}`)
	require.Equal(t, "b", written.GetLabels()["a"])

	for name, in := range map[string]dynamic.ResourceInterface{"v1": v1, "v2": v2} {
		bad := versioned(widget("bad", nil), group+"/"+name)
		bad.SetLabels(map[string]string{"bad": "yes"})
		_, err := in.Create(t.Context(), bad, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "not convertible")
	}
	label := []byte(`{"metadata":{"labels":{"bad":"yes"}}}`)
	_, err = v1.Patch(t.Context(), "a", types.MergePatchType, label, metav1.PatchOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)

	// Unreadable objects can be changed and deleted in the stored version.
	mustPatch(t, v1, "a", `{"metadata":{"finalizers":["example.org/f"]}}`)
	c.fails.Store(true)
	require.NoError(t, v1.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	mustPatch(t, v1, "a", `{"metadata":{"finalizers":null}}`)
	_, err = v1.Get(t.Context(), "a", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func versioned(u *unstructured.Unstructured, version string) *unstructured.Unstructured {
	u.SetAPIVersion(version)
	return u
}

// TestConvertedSystem: system kinds with a conversion function are cached in each version, because the result
// is always the same.
func TestConvertedSystem(t *testing.T) {
	t.Parallel()
	crd := twoVersions(byWebhook("https://never.called.example", nil))
	var c converter
	s := startServer(t, serverOptions{system: []*apiextensionsv1.CustomResourceDefinition{crd}, convert: map[schema.GroupResource]definitions.Convert{widgets.GroupResource(): c.convert}})
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", nil))
	second := widgets.GroupResource().WithVersion("v2")
	for i := range 3 {
		list := mustList(t, s.Dynamic(t, "one").Resource(second), metav1.ListOptions{})
		require.Equal(t, fmt.Sprintf("%s/v1", widgets.Group), list.Items[0].GetAnnotations()["from"])
		require.EqualValues(t, 1, c.calls.Load(), "list %d", i)
	}
}

// TestConvertedManagers: updates that may call a webhook for managed fields are limited, including those whose
// requests have ended, and creates call none.
func TestConvertedManagers(t *testing.T) {
	t.Parallel()
	const limit, requests = 2, 6
	var under, most, later atomic.Int64
	release := make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := under.Add(1)
		defer under.Add(-1)
		for known := most.Load(); n > known; known = most.Load() {
			if most.CompareAndSwap(known, n) {
				break
			}
		}
		body, _ := io.ReadAll(r.Body)
		if !bytes.Contains(body, []byte(`"size":1`)) && !bytes.Contains(body, []byte(`"size":2`)) {
			later.Add(1)
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		_, _ = w.Write(sameInAnotherVersion(body))
	}))
	t.Cleanup(hook.Close)
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock)
	s := startServer(t, serverOptions{calls: limit})
	s.CreateCRD(t, "one", twoVersions(byWebhook(hook.URL, hook.Certificate())))
	objects := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	entries := []metav1.ManagedFieldsEntry{
		{Manager: "other", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "example.com/v2", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:size":{}}}`)},
	}
	object := widget("a", map[string]any{"size": int64(1)})
	object.SetManagedFields(entries)
	created := mustCreate(t, objects, object)
	for _, m := range created.GetManagedFields() {
		require.Equal(t, "example.com/v1", m.APIVersion)
	}
	require.Zero(t, most.Load(), "a create must not call the webhook")

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": entries}, "spec": map[string]any{"size": 2}})
	require.NoError(t, err)
	raw := s.CRDs(t, "one").ApiextensionsV1().RESTClient()
	write := func(timeout string) error {
		return raw.Patch(types.MergePatchType).AbsPath("/apis/example.com/v1/namespaces/default/widgets/a").Param("timeout", timeout).Body(patch).Do(t.Context()).Error()
	}
	var pending sync.WaitGroup
	for range requests {
		pending.Go(func() {
			if write("1s") == nil {
				t.Error("a write did not wait for the webhook")
			}
		})
	}
	pending.Wait()
	require.Eventually(t, func() bool { return under.Load() == limit }, deadline, tick, "calls must continue after their requests have ended: %d", under.Load())
	require.Error(t, write("1s"), "writes must be rejected while all slots are used")
	require.EqualValues(t, limit, most.Load(), "concurrent calls must be limited")
	_, err = objects.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err, "a read must not require a slot")

	unblock()
	require.Eventually(t, func() bool { return write("20s") == nil }, deadline, tick, "slots must be released")
	require.Eventually(t, func() bool { return under.Load() == 0 }, deadline, tick, "calls must end: %d", under.Load())
	// Updates whose requests have ended make their calls one after another, so that some may still follow.
	// Their objects have other sizes.
	testDryRuns(t, s, &later)
}

// testDryRuns: a dry run does not convert managed fields of other versions.
func testDryRuns(t *testing.T, s *testServer, calls *atomic.Int64) {
	t.Helper()
	objects := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	const group = "example.com"
	force := true
	inV2 := widgets.GroupResource().WithVersion("v2")
	_, err := s.Dynamic(t, "one").Resource(inV2).Namespace("default").Patch(t.Context(), "a", types.ApplyPatchType,
		[]byte(`{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"},"spec":{"size":3}}`), metav1.PatchOptions{FieldManager: "other", Force: &force})
	require.NoError(t, err)
	object := mustGet(t, objects, "a")
	require.True(t, slices.ContainsFunc(object.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.APIVersion == group+"/v2" }), "%v", object.GetManagedFields())
	before := calls.Load()
	force = false
	tried := []string{metav1.DryRunAll}
	patch := func(kind types.PatchType, data string) (*unstructured.Unstructured, error) {
		options := metav1.PatchOptions{DryRun: tried}
		if kind == types.ApplyPatchType {
			options.FieldManager, options.Force = "mine", &force
		}
		return objects.Patch(t.Context(), "a", kind, []byte(data), options)
	}
	require.NoError(t, unstructured.SetNestedField(object.Object, int64(7), "spec", "size"))
	updated, err := objects.Update(t.Context(), object, metav1.UpdateOptions{DryRun: tried})
	require.NoError(t, err)
	merged, err := patch(types.MergePatchType, `{"spec":{"size":7}}`)
	require.NoError(t, err)
	const apply = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":7}}`
	_, err = patch(types.ApplyPatchType, apply)
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.ErrorContains(t, err, `conflict with "other"`)
	force = true
	applied, err := patch(types.ApplyPatchType, apply)
	require.NoError(t, err)
	for _, one := range []*unstructured.Unstructured{updated, merged, applied} {
		size, _, err := unstructured.NestedInt64(one.Object, "spec", "size")
		require.NoError(t, err)
		require.EqualValues(t, 7, size)
		require.NotEmpty(t, one.GetManagedFields())
		for _, m := range one.GetManagedFields() {
			require.Equal(t, group+"/v1", m.APIVersion)
		}
	}
	for kind, data := range map[types.PatchType]string{
		types.MergePatchType: `{"metadata":{"managedFields":[{"manager":"other","operation":"Apply","apiVersion":"example.com/v2","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:size":{}}}}]}}`,
		types.JSONPatchType:  `[{"op":"copy","from":"/spec","path":"/metadata"}]`,
	} {
		_, err := patch(kind, data)
		require.True(t, apierrors.IsBadRequest(err), "%s: %v", kind, err)
		require.ErrorContains(t, err, "cannot be patched in a dry run")
	}
	require.Equal(t, before, calls.Load(), "dry runs must not call the webhook")
	object = mustGet(t, objects, "a")
	require.True(t, slices.ContainsFunc(object.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.APIVersion == group+"/v2" }), "a dry run must not change the object: %v", object.GetManagedFields())
}

// sameInAnotherVersion responds to a ConversionReview.
func sameInAnotherVersion(body []byte) []byte {
	review := &apiextensionsv1.ConversionReview{}
	if err := json.Unmarshal(body, review); err != nil {
		return nil
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for i := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(review.Request.Objects[i].Raw); err != nil {
			return fmt.Append(nil, err)
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		out, err := u.MarshalJSON()
		if err != nil {
			return fmt.Append(nil, err)
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: out})
	}
	review.Request, review.Response = nil, response
	encoded, err := json.Marshal(review)
	if err != nil {
		return fmt.Append(nil, err)
	}
	return encoded
}
