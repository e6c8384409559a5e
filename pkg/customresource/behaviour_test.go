package customresource

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestUpstreamBehaviour verifies features of upstream's handler on shared storage.
func TestUpstreamBehaviour(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")

	t.Run("status", func(t *testing.T) {
		w := widget("status", map[string]any{"size": int64(1)})
		require.NoError(t, unstructured.SetNestedField(w.Object, "guessed", "status", "phase"))
		w = mustCreate(t, client, w)
		require.NotContains(t, w.Object, "status")
		require.NoError(t, unstructured.SetNestedField(w.Object, "done", "status", "phase"))
		require.NoError(t, unstructured.SetNestedField(w.Object, int64(5), "spec", "size"))
		updated, err := client.UpdateStatus(t.Context(), w, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, map[string]any{"phase": "done"}, updated.Object["status"])
		require.Equal(t, map[string]any{"size": int64(1), "color": "blue"}, updated.Object["spec"])
		require.Equal(t, int64(1), updated.GetGeneration())
		updated = mustPatch(t, client, "status", `{"spec":{"size":2},"status":{"phase":"x"}}`)
		require.Equal(t, map[string]any{"phase": "done"}, updated.Object["status"])
		require.Equal(t, int64(2), updated.GetGeneration())
	})
	t.Run("scale", func(t *testing.T) {
		mustCreate(t, client, widget("scale", map[string]any{"size": int64(2)}))
		scaled, err := client.Patch(t.Context(), "scale", types.MergePatchType, []byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{}, "scale")
		require.NoError(t, err)
		require.Equal(t, "Scale", scaled.GetKind())
		w := mustGet(t, client, "scale")
		size, _, _ := unstructured.NestedInt64(w.Object, "spec", "size")
		require.Equal(t, int64(7), size)
	})
	t.Run("server-side apply", func(t *testing.T) {
		applied, err := client.Apply(t.Context(), "apply", widget("apply", map[string]any{"size": int64(2)}), metav1.ApplyOptions{FieldManager: "a"})
		require.NoError(t, err)
		require.Len(t, applied.GetManagedFields(), 1)
		_, err = client.Apply(t.Context(), "apply", widget("apply", map[string]any{"size": int64(3)}), metav1.ApplyOptions{FieldManager: "b"})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		finalized := widget("apply", map[string]any{"color": "red"})
		finalized.SetFinalizers([]string{"example.com/b"})
		_, err = client.Apply(t.Context(), "apply", finalized, metav1.ApplyOptions{FieldManager: "b"})
		require.NoError(t, err)
		finalized.SetFinalizers(nil)
		applied, err = client.Apply(t.Context(), "apply", finalized, metav1.ApplyOptions{FieldManager: "b"})
		require.NoError(t, err)
		require.Empty(t, applied.GetFinalizers(), "applied metadata must be typed")
		size, _, _ := unstructured.NestedInt64(applied.Object, "spec", "size")
		require.Equal(t, int64(2), size)
		_, err = client.Apply(t.Context(), "apply", widget("apply", map[string]any{"nonsense": "x"}), metav1.ApplyOptions{FieldManager: "b"})
		require.Error(t, err)
	})
}

// TestUpstreamWrites is the second half of TestUpstreamBehaviour.
func TestUpstreamWrites(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")

	t.Run("dry run", func(t *testing.T) {
		w, err := client.Create(t.Context(), widget("dry", map[string]any{"size": int64(1)}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		require.Equal(t, "one", w.GetAnnotations()["kcp.io/cluster"])
		_, err = client.Get(t.Context(), "dry", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err))
	})
	t.Run("strict field validation", func(t *testing.T) {
		_, err := client.Create(t.Context(), widget("strict", map[string]any{"nonsense": "x"}), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		require.ErrorContains(t, err, `unknown field "spec.nonsense"`)
	})
	t.Run("preconditions", func(t *testing.T) {
		w := mustCreate(t, client, widget("precious", map[string]any{"size": int64(1)}))
		wrong := types.UID("wrong")
		err := client.Delete(t.Context(), "precious", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		stale := w.DeepCopy()
		w.SetLabels(map[string]string{"a": "b"})
		mustUpdate(t, client, w)
		_, err = client.Update(t.Context(), stale, metav1.UpdateOptions{})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		uid := w.GetUID()
		require.NoError(t, client.Delete(t.Context(), "precious", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}))
	})
	t.Run("generateName, update without change", func(t *testing.T) {
		w := widget("", map[string]any{"size": int64(1)})
		w.SetGenerateName("generated-")
		w = mustCreate(t, client, w)
		same := mustUpdate(t, client, w)
		require.Equal(t, w.GetResourceVersion(), same.GetResourceVersion())
	})
}

func TestSelectorsPagesAndCollections(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one", "two")
	for _, cluster := range []string{"one", "two"} {
		client := s.Dynamic(t, cluster).Resource(widgets).Namespace("default")
		for i := range 10 {
			spec := map[string]any{"size": int64(1)}
			if i%2 == 1 {
				spec["color"] = "red"
			}
			w := widget(fmt.Sprintf("w-%d", i), spec)
			w.SetLabels(map[string]string{"third": fmt.Sprint(i % 3)})
			mustCreate(t, client, w)
		}
	}
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	elsewhere := s.Dynamic(t, "one").Resource(widgets).Namespace("other")
	apart := widget("w-0", nil)
	apart.SetLabels(map[string]string{"third": "0"})
	mustCreate(t, elsewhere, apart)
	for _, rv := range []string{"", "0"} {
		red := mustList(t, client, metav1.ListOptions{FieldSelector: "spec.color=red", ResourceVersion: rv})
		require.Len(t, red.Items, 5)
		blue := mustList(t, client, metav1.ListOptions{FieldSelector: "spec.color=blue,metadata.name=w-2", ResourceVersion: rv})
		require.Len(t, blue.Items, 1)
		labelled := mustList(t, client, metav1.ListOptions{LabelSelector: "third=0", ResourceVersion: rv})
		require.Len(t, labelled.Items, 4)
	}
	_, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=1"})
	require.True(t, apierrors.IsBadRequest(err), "%v", err)

	var names []string
	options := metav1.ListOptions{Limit: 3}
	for {
		page := mustList(t, client, options)
		for _, w := range page.Items {
			names = append(names, w.GetName())
		}
		if page.GetContinue() == "" {
			break
		}
		options.Continue = page.GetContinue()
	}
	require.Len(t, names, 10)
	_, err = s.Dynamic(t, "two").Resource(widgets).Namespace("other").List(t.Context(), metav1.ListOptions{Limit: 3, Continue: options.Continue})
	require.True(t, apierrors.IsBadRequest(err), "continue token of another list: %v", err)

	require.NoError(t, client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "third=0"}))
	require.Len(t, mustList(t, client, metav1.ListOptions{}).Items, 6)
	require.NoError(t, client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.color=red"}))
	require.Len(t, mustList(t, client, metav1.ListOptions{}).Items, 3)
	_, err = elsewhere.Get(t.Context(), "w-0", metav1.GetOptions{})
	require.NoError(t, err, "objects of other namespaces must remain")
	others := mustList(t, s.Dynamic(t, "two").Resource(widgets), metav1.ListOptions{})
	require.Len(t, others.Items, 10, "objects of other logical clusters must remain")
}

func TestVersions(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	crd := widgetCRD(nil)
	old := crd.Spec.Versions[0].DeepCopy()
	old.Name, old.Storage = "v1alpha1", false
	old.Deprecated = true
	crd.Spec.Versions = append(crd.Spec.Versions, *old)
	s.CreateCRD(t, "one", crd)

	alpha := widgets.GroupResource().WithVersion("v1alpha1")
	w := versioned(widget("a", map[string]any{"size": int64(1)}), "example.com/v1alpha1")
	created := mustCreate(t, s.Dynamic(t, "one").Resource(alpha).Namespace("default"), w)
	require.Equal(t, "example.com/v1alpha1", created.GetAPIVersion())
	event, _ := nextEvent(t, mustWatch(t, s.Dynamic(t, "one").Resource(alpha), metav1.ListOptions{}))
	require.Equal(t, "example.com/v1alpha1", object(t, event).GetAPIVersion())
	got := mustGet(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), "a")
	require.Equal(t, "example.com/v1", got.GetAPIVersion())

	absent := widgets.GroupResource().WithVersion("v2")
	_, err := s.Dynamic(t, "one").Resource(absent).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

func TestNameConflicts(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")

	rival := widgetCRD(nil)
	rival.Name = "gizmos.example.com"
	rival.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "gizmos", Singular: "gizmo", Kind: "Widget", ListKind: "GizmoList"}
	created := s.CreateCRD(t, "one", rival.DeepCopy())
	requireCondition(t, created, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse, "KindConflict")
	requireCondition(t, created, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
	gizmos := widgets.GroupVersion().WithResource("gizmos")
	_, err := s.Dynamic(t, "one").Resource(gizmos).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err))

	elsewhere := s.CreateCRD(t, "two", rival.DeepCopy())
	requireCondition(t, elsewhere, apiextensionsv1.Established, apiextensionsv1.ConditionTrue, "InitialNamesAccepted")

	s.DeleteCRD(t, "one", "widgets.example.com")
	client := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions()
	require.Eventually(t, func() bool {
		crd, err := client.Get(t.Context(), "gizmos.example.com", metav1.GetOptions{})
		return err == nil && crd.Status.AcceptedNames.Kind == "Widget"
	}, deadline, tick, "the released name must be accepted")
	mustList(t, s.Dynamic(t, "one").Resource(gizmos), metav1.ListOptions{})

	builtIn := widgetCRD(nil)
	builtIn.Name = "widgets.apiextensions.k8s.io"
	builtIn.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, a test"}
	builtIn.Spec.Group = "apiextensions.k8s.io"
	builtIn.Spec.Names.ShortNames = []string{"crd"}
	created = s.CreateCRD(t, "one", builtIn)
	requireCondition(t, created, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse, "ShortNamesConflict")
	requireCondition(t, created, apiextensionsv1.KubernetesAPIApprovalPolicyConformant, apiextensionsv1.ConditionFalse, "UnapprovedAnnotation")
}

// TestStatusOfDefinitions: clients may remove stored versions, but cannot accept names.
func TestStatusOfDefinitions(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	crd := s.CreateCRD(t, "one", widgetCRD(nil))
	client := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions()
	next := crd.Spec.Versions[0].DeepCopy()
	next.Name = "v2"
	crd.Spec.Versions[0].Storage = false
	crd.Spec.Versions = append(crd.Spec.Versions, *next)
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("old", nil))
	crd, err := client.Update(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"v1", "v2"}, crd.Status.StoredVersions)
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("new", nil))
	list := mustList(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), metav1.ListOptions{})
	require.Len(t, list.Items, 2, "objects of both versions must be listed")
	without := crd.DeepCopy()
	without.Spec.Versions = without.Spec.Versions[1:]
	_, err = client.Update(t.Context(), without, metav1.UpdateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "status.storedVersions[0]")

	crd.Status.StoredVersions = []string{"v2"}
	crd.Status.AcceptedNames.Kind = "Stolen"
	crd.Status.Conditions = nil
	crd, err = client.UpdateStatus(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"v2"}, crd.Status.StoredVersions)
	require.Equal(t, "Widget", crd.Status.AcceptedNames.Kind)
	requireCondition(t, crd, apiextensionsv1.Established, apiextensionsv1.ConditionTrue, "InitialNamesAccepted")
	crd.Spec.Versions = crd.Spec.Versions[1:]
	_, err = client.Update(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// TestGarbage: errors use the names of the client's request.
func TestGarbage(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	mustCreate(t, client, widget("a", map[string]any{"size": int64(1)}))

	raw, err := rest.UnversionedRESTClientFor(rawConfig(s.ClusterConfig("one")))
	require.NoError(t, err)
	post := func() *rest.Request { return raw.Post().SetHeader("Content-Type", "application/json") }
	const all = "/apis/example.com/v1/namespaces/default/widgets"
	for name, c := range map[string]struct {
		request *rest.Request
		code    int
		message string
	}{
		"no JSON":              {post().AbsPath(all).Body([]byte(`{`)), http.StatusBadRequest, ""},
		"another kind":         {post().AbsPath(all).Body([]byte(`{"apiVersion":"example.com/v1","kind":"Other","metadata":{"name":"x"}}`)), http.StatusUnprocessableEntity, "Widget"},
		"another group":        {post().AbsPath(all).Body([]byte(`{"apiVersion":"other.com/v1","kind":"Widget","metadata":{"name":"x"}}`)), http.StatusBadRequest, ""},
		"a bad name":           {post().AbsPath(all).Body([]byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"../x"}}`)), http.StatusUnprocessableEntity, "Widget.example.com"},
		"no such object":       {raw.Get().AbsPath(all + "/b"), http.StatusNotFound, `widgets.example.com \"b\" not found`},
		"no such subresource":  {raw.Get().AbsPath(all + "/a/nonsense"), http.StatusNotFound, "widgets.example.com"},
		"exists":               {post().AbsPath(all).Body([]byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`)), http.StatusConflict, `widgets.example.com \"a\" already exists`},
		"a bad patch":          {raw.Patch(types.JSONPatchType).AbsPath(all + "/a").Body([]byte(`[{"op":"move"}]`)), http.StatusUnprocessableEntity, ""},
		"an unsupported patch": {raw.Patch(types.StrategicMergePatchType).AbsPath(all + "/a").Body([]byte(`{}`)), http.StatusUnsupportedMediaType, ""},
		"a bad selector":       {raw.Get().AbsPath(all).Param("labelSelector", "=="), http.StatusBadRequest, ""},
		"a bad token":          {raw.Get().AbsPath(all).Param("limit", "1").Param("continue", "nonsense"), http.StatusBadRequest, "continue"},
		"without a namespace":  {post().AbsPath("/apis/example.com/v1/widgets").Body([]byte(`{}`)), http.StatusNotFound, ""},
		"no such version":      {raw.Get().AbsPath("/apis/example.com/v9/widgets"), http.StatusNotFound, ""},
		"invalid escape":       {raw.Get().AbsPath("/apis/example.com/v1/widgets%"), http.StatusNotFound, ""},
		"an identity":          {raw.Get().AbsPath("/apis/example.com/v1/widgets:abc"), http.StatusNotFound, ""},
		"only a colon":         {raw.Get().AbsPath("/apis/example.com/v1/:"), http.StatusNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			result := c.request.Do(t.Context())
			var code int
			result.StatusCode(&code)
			body, _ := result.Raw()
			require.Equal(t, c.code, code, "%s", body)
			require.Contains(t, string(body), c.message)
		})
	}

	crds := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions()
	misnamed := widgetCRD(nil)
	misnamed.Name = "others.example.com"
	_, err = crds.Create(t.Context(), misnamed, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	unapproved := widgetCRD(nil)
	unapproved.Name, unapproved.Spec.Group = "widgets.apps.k8s.io", "apps.k8s.io"
	_, err = crds.Create(t.Context(), unapproved, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	schemaless := widgetCRD(nil)
	schemaless.Spec.Versions[0].Schema = nil // but with selectable fields
	_, err = s.CRDs(t, "two").ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), schemaless, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "spec.versions[0].schema.openAPIV3Schema: Required value")
	untyped := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"x": {Type: "nonsense"}})
	_, err = s.CRDs(t, "two").ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), untyped, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
}

// TestUnreachableConversion: an unreachable webhook fails only requests that need it, and only in its logical
// cluster.
func TestUnreachableConversion(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "one", twoVersions(nil))
	s.CreateCRD(t, "two", twoVersions(byWebhook("https://127.0.0.1:1/convert", nil)))
	v2 := widgets.GroupResource().WithVersion("v2")
	for _, cluster := range []string{"one", "two"} {
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
	}
	mustList(t, s.Dynamic(t, "one").Resource(v2), metav1.ListOptions{})
	_, err := s.Dynamic(t, "two").Resource(v2).List(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "conversion webhook")
	mustList(t, s.Dynamic(t, "two").Resource(widgets), metav1.ListOptions{})
	list, err := s.Metadata(t, "*").Resource(v2).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2, "metadata must not require conversion")
}
