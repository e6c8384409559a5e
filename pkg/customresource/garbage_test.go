package customresource

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestGarbage: errors use the names of the client's request.
func TestGarbage(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "one", widgetCRD(nil))
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
		"what is no name":      {raw.Get().AbsPath("/apis/example.com/v1/widgets%"), http.StatusNotFound, ""},
		"an identity":          {raw.Get().AbsPath("/apis/example.com/v1/widgets:abc"), http.StatusNotFound, ""},
		"nothing but a colon":  {raw.Get().AbsPath("/apis/example.com/v1/:"), http.StatusNotFound, ""},
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
	crd := widgetCRD(nil)
	other := crd.Spec.Versions[0].DeepCopy()
	other.Name, other.Storage = "v2", false
	crd.Spec.Versions = append(crd.Spec.Versions, *other)
	s.CreateCRD(t, "one", crd.DeepCopy())
	url := "https://127.0.0.1:1/convert"
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url},
			ConversionReviewVersions: []string{"v1"},
		},
	}
	s.CreateCRD(t, "two", crd)
	v2 := widgets
	v2.Version = "v2"
	for _, cluster := range []string{"one", "two"} {
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
	}
	_, err := s.Dynamic(t, "one").Resource(v2).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	_, err = s.Dynamic(t, "two").Resource(v2).List(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "conversion webhook")
	_, err = s.Dynamic(t, "two").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	list, err := s.Metadata(t, "*").Resource(v2).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2, "metadata needs no conversion")
}
