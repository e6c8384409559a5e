package customresource

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
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
		return nil, errors.New("it cannot be said")
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
	plain, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	require.NotEqual(t, plain.Hash, sch.Hash)
	s := startServer(t, serverOptions{sources: []definitions.Source{newBoundAPIs(map[string]boundAPI{"one": {sch, "h"}, "two": {plain, "h"}})}})
	second := widgets
	second.Version = "v2"
	v1, v2 := s.Dynamic(t, "one").Resource(widgets).Namespace("default"), s.Dynamic(t, "one").Resource(second).Namespace("default")
	group := widgets.Group

	made := mustCreate(t, v2, versioned(widget("a", nil), group+"/v2"))
	require.Equal(t, group+"/v1", made.GetAnnotations()["from"])
	require.Empty(t, made.GetFinalizers())
	got, err := v1.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, group+"/v2", got.GetAnnotations()["from"])
	list, err := v2.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, group+"/v1", list.Items[0].GetAnnotations()["from"])
	before := c.calls.Load()
	_, err = v2.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, before, c.calls.Load(), "what it was converted to is remembered")
	other := mustCreate(t, s.Dynamic(t, "two").Resource(second).Namespace("default"), versioned(widget("a", nil), group+"/v2"))
	require.NotContains(t, other.GetAnnotations(), "from")

	mustCreate(t, v1, widget("b", nil))
	read, err := v2.Get(t.Context(), "b", metav1.GetOptions{})
	require.NoError(t, err)
	written, err := v2.Update(t.Context(), read, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, read, written, "it is not converted back if it has not changed")
	written, err = v2.Patch(t.Context(), "b", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, "b", written.GetLabels()["a"])

	for name, in := range map[string]func(*unstructured.Unstructured) error{
		"v1": func(u *unstructured.Unstructured) error {
			_, err := v1.Create(t.Context(), u, metav1.CreateOptions{})
			return err
		},
		"v2": func(u *unstructured.Unstructured) error {
			_, err := v2.Create(t.Context(), versioned(u, group+"/v2"), metav1.CreateOptions{})
			return err
		},
	} {
		bad := widget("bad", nil)
		bad.SetLabels(map[string]string{"bad": "yes"})
		err := in(bad)
		require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "it cannot be said")
	}
	label := []byte(`{"metadata":{"labels":{"bad":"yes"}}}`)
	_, err = v1.Patch(t.Context(), "a", types.MergePatchType, label, metav1.PatchOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)

	// Unreadable objects can be changed and deleted in the stored version.
	_, err = v1.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/f"]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.fails.Store(true)
	require.NoError(t, v1.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	_, err = v1.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
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
	const host = "here.example"
	url := "https://" + host
	crd := twoVersions(&apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
	}})
	var c converter
	s := startServer(t, serverOptions{system: []*apiextensionsv1.CustomResourceDefinition{crd}, convert: map[string]versions.Convert{host: c.convert}})
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", nil))
	second := widgets
	second.Version = "v2"
	for i := range 3 {
		list, err := s.Dynamic(t, "one").Resource(second).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s/v1", widgets.Group), list.Items[0].GetAnnotations()["from"])
		require.EqualValues(t, 1, c.calls.Load(), "list %d", i)
	}
}
