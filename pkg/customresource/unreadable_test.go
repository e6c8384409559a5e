package customresource

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

// multiplied returns properties with lists of items that get a default with some keys, or none.
func multiplied(t *testing.T, keys int) map[string]apiextensionsv1.JSONSchemaProps {
	t.Helper()
	item := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	if keys > 0 {
		value := map[string]int{}
		for i := range keys {
			value[fmt.Sprintf("k%d", i)] = 1
		}
		data, err := json.Marshal(value)
		require.NoError(t, err)
		item.Default = &apiextensionsv1.JSON{Raw: data}
	}
	return map[string]apiextensionsv1.JSONSchemaProps{"items": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{
		Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"of": item}},
	}}}
}

// manyItems returns an object to which each key of the default adds 60,000 values.
func manyItems(name string) *unstructured.Unstructured {
	return widget(name, map[string]any{"items": listOf(60_000, empty)})
}

// TestMultipliedDefaults: an object that defaults would expand without limit fails only requests of its own
// logical cluster, is recorded, and can be deleted.
func TestMultipliedDefaults(t *testing.T) {
	t.Parallel()
	record := unreadable.NewRecord(t.Context(), nil)
	s := startServer(t, serverOptions{unreadable: record})
	crd := s.CreateCRD(t, "a", widgetCRD(multiplied(t, 0)))
	s.CreateCRD(t, "b", widgetCRD(multiplied(t, 0)))
	a := s.Dynamic(t, "a").Resource(widgets).Namespace("default")
	mustCreate(t, a, manyItems("large"))
	mustCreate(t, a, widget("small", map[string]any{"items": []any{map[string]any{}}}))

	crd, err := s.CRDs(t, "a").ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), crd.Name, metav1.GetOptions{})
	require.NoError(t, err)
	crd.Spec = widgetCRD(multiplied(t, 100)).Spec
	_, err = s.CRDs(t, "a").ApiextensionsV1().CustomResourceDefinitions().Update(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err = a.Get(t.Context(), "large", metav1.GetOptions{})
		return err != nil
	}, deadline, tick)
	require.True(t, apierrors.IsStoreReadError(err), "%v", err)
	require.ErrorContains(t, err, "defaults")
	_, err = a.List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsStoreReadError(err), "%v", err)
	mustGet(t, a, "small")
	mustList(t, s.Dynamic(t, "b").Resource(widgets), metav1.ListOptions{})
	found := record.In("a", "")
	require.Len(t, found, 1)
	require.Equal(t, "large", found[0].Name)
	require.Equal(t, unreadable.Defaults, found[0].Reason)

	metadata, err := s.Metadata(t, "a").Resource(widgets).Namespace("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "metadata of all objects must be readable")
	require.Len(t, metadata.Items, 2)
	require.NoError(t, a.Delete(t.Context(), "large", metav1.DeleteOptions{}))
	require.Empty(t, record.In("a", ""))
	mustList(t, a, metav1.ListOptions{})
}

// TestWildcardsSkipUnreadableObjects: controllers of all logical clusters and a starting server skip an
// unreadable object.
func TestWildcardsSkipUnreadableObjects(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	before := startServer(t, serverOptions{data: data, system: []*apiextensionsv1.CustomResourceDefinition{widgetCRD(multiplied(t, 0))}})
	for cluster, object := range map[string]*unstructured.Unstructured{"a": manyItems("large"), "b": widget("small", nil)} {
		mustCreate(t, before.Dynamic(t, cluster).Resource(widgets).Namespace("default"), object)
	}
	before.Stop()

	s := startServer(t, serverOptions{data: data, system: []*apiextensionsv1.CustomResourceDefinition{widgetCRD(multiplied(t, 100))}})
	all := s.Dynamic(t, "*").Resource(widgets)
	list := mustList(t, all, metav1.ListOptions{})
	require.Len(t, list.Items, 1)
	require.Equal(t, "small", list.Items[0].GetName())
	w := mustWatch(t, all, metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	for _, want := range []watch.EventType{watch.Added, watch.Bookmark} {
		event, _ := nextEvent(t, w)
		require.Equal(t, want, event.Type)
	}
	_, err := s.Dynamic(t, "a").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsStoreReadError(err), "%v", err)
}

// TestEmptyUnreadable: objects that cannot be read with the schema are deleted by their metadata.
func TestEmptyUnreadable(t *testing.T) {
	t.Parallel()
	former := boundSchema(t, "one", "size")
	source := newBoundAPIs(map[string]boundAPI{"consumer": former, "neighbor": former})
	s := startServer(t, serverOptions{sources: []definitions.Source{source}})
	for _, cluster := range []string{"consumer", "neighbor"} {
		objects := s.Dynamic(t, cluster).Resource(widgets).Namespace("default")
		for _, name := range []string{"free", "kept"} {
			w := widget(name, nil)
			if name == "kept" {
				w.SetFinalizers([]string{"example.com/wait"})
			}
			mustCreate(t, objects, w)
		}
	}
	crd := widgetCRD(nil)
	crd.Spec.Scope, crd.Spec.Names.Kind, crd.Spec.Names.ListKind = apiextensionsv1.ClusterScoped, "Gizmo", "GizmoList"
	crd.Spec.Versions[0].Name = "v2"
	d := &definitions.Definition{Schema: schemaOf(t, crd), Identity: "one"}
	left, err := s.Empty(t.Context(), "consumer", d)
	require.NoError(t, err)
	require.Equal(t, definitions.Remaining{Objects: 1, Finalizers: map[string]int{"example.com/wait": 1}}, left)

	objects := s.Dynamic(t, "consumer").Resource(widgets).Namespace("default")
	_, err = objects.Get(t.Context(), "free", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	kept := mustGet(t, objects, "kept")
	require.NotNil(t, kept.GetDeletionTimestamp())
	require.Equal(t, "Widget", kept.GetKind(), "the stored object must not change otherwise")
	mustPatch(t, objects, "kept", `{"metadata":{"finalizers":null}}`)
	left, err = s.Empty(t.Context(), "consumer", d)
	require.NoError(t, err)
	require.Zero(t, left.Objects)
	all := mustList(t, s.Dynamic(t, "neighbor").Resource(widgets), metav1.ListOptions{})
	require.Len(t, all.Items, 2)
	require.Equal(t, "neighbor", logicalcluster.From(&all.Items[0]).String())
}
