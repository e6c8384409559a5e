package customresource

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	v2protobuf = "com.github.proto-openapi.spec.v2.v1.0+protobuf"
	v3protobuf = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// FuzzDefinition creates any document as a definition: the server does not fail, and can serve each accepted
// definition.
func FuzzDefinition(f *testing.F) {
	crd := widgetCRD(nil)
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	valid, err := json.Marshal(crd)
	require.NoError(f, err)
	for _, seed := range []string{
		string(valid), "", "{}", "null", `{"spec":null}`, `{"spec":{"versions":[]}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a.b.c"},"spec":{"group":"b.c","names":{"plural":"a","kind":"A"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{"conversion":{"strategy":"Webhook"},"versions":[{"schema":{"openAPIV3Schema":{"default":{"a":[null]}}}}]}}`,
	} {
		f.Add([]byte(seed))
	}
	s := startServer(f, serverOptions{})
	client, err := rest.HTTPClientFor(s.Config)
	require.NoError(f, err)
	crds, neighbour := s.CRDsOver(f, "fuzz", client), s.CRDsOver(f, "neighbour", client)
	f.Fuzz(func(t *testing.T, data []byte) {
		var status int
		result := crds.ApiextensionsV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/json").Body(data).Do(t.Context()).StatusCode(&status)
		var created apiextensionsv1.CustomResourceDefinition
		if result.Into(&created) != nil || created.Name == "" {
			require.True(t, status >= 400 && status < 500, "%d", status)
			return
		}
		for _, v := range created.Spec.Versions {
			if !v.Served {
				continue
			}
			err := crds.ApiextensionsV1().RESTClient().Get().AbsPath("/apis", created.Spec.Group, v.Name, created.Spec.Names.Plural).Do(t.Context()).Error()
			require.False(t, apierrors.IsInternalError(err), "%v", err)
			for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/" + created.Spec.Group + "/" + v.Name} {
				for _, accept := range []string{"application/json", "application/" + v3protobuf, "application/" + v2protobuf} {
					err := crds.ApiextensionsV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).Do(t.Context()).Error()
					require.True(t, err == nil || apierrors.IsNotAcceptable(err), "%s: %v", path, err)
				}
			}
		}
		theirs, err := neighbour.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, theirs.Items, "what is somebody's is not everybody's")
		require.NoError(t, crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), created.Name, metav1.DeleteOptions{}))
	})
}

// FuzzObject creates any document as a custom resource, and sends it as patches.
func FuzzObject(f *testing.F) {
	valid, err := json.Marshal(widget("a", map[string]any{"size": int64(1)}))
	require.NoError(f, err)
	for _, seed := range []string{
		string(valid), "", "{}", "[]", "null", `{"spec":7}`, `{"metadata":[]}`, `{"metadata":{"name":7}}`,
		`[{"op":"add","path":"/spec/size","value":null}]`, `{"spec":{"size":1e400}}`, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b","managedFields":[{}]},"spec":{"color":"\u0000"}}`,
	} {
		f.Add([]byte(seed))
	}
	s := startServer(f, serverOptions{})
	s.CreateCRD(f, "fuzz", widgetCRD(nil))
	client, err := rest.HTTPClientFor(s.Config)
	require.NoError(f, err)
	api := s.CRDsOver(f, "fuzz", client).ApiextensionsV1().RESTClient()
	const path = "/apis/example.com/v1/namespaces/default/widgets"
	s.CreateCRD(f, "neighbour", widgetCRD(nil))
	neighbour := s.Dynamic(f, "neighbour").Resource(widgets)
	_, err = neighbour.Namespace("default").Create(f.Context(), widget("a", nil), metav1.CreateOptions{})
	require.NoError(f, err)
	before, err := neighbour.List(f.Context(), metav1.ListOptions{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		answered := func(r *rest.Request, contentType string) {
			t.Helper()
			var status int
			r.SetHeader("Content-Type", contentType).Body(data).Do(t.Context()).StatusCode(&status)
			require.True(t, status >= 200 && status < 500, "%d", status)
		}
		require.NoError(t, client2xxOrConflict(api.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(valid).Do(t.Context()).Error()))
		answered(api.Post().AbsPath(path), "application/json")
		answered(api.Put().AbsPath(path, "a"), "application/json")
		answered(api.Put().AbsPath(path, "a", "status"), "application/json")
		answered(api.Put().AbsPath(path, "a", "scale"), "application/json")
		answered(api.Delete().AbsPath(path, "none"), "application/json")
		for _, kind := range []string{"application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml"} {
			answered(api.Patch("").AbsPath(path, "a").Param("fieldManager", "fuzz").Param("force", "true"), kind)
		}
		require.NoError(t, api.Get().AbsPath(path).Do(t.Context()).Error(), "what is stored can be listed")
		after, err := neighbour.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Equal(t, before.Items, after.Items, "what is somebody's is not everybody's")
	})
}

func client2xxOrConflict(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
