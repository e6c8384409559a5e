package serving

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// TestListLimit checks that objects are rejected in each encoding before their lists are compared.
func TestListLimit(t *testing.T) {
	t.Parallel()
	account := func(n int) *corev1.ServiceAccount {
		made := &corev1.ServiceAccount{}
		for i := range n {
			made.Secrets = append(made.Secrets, corev1.ObjectReference{Name: fmt.Sprint("s", i)})
		}
		return made
	}
	encoded := func(mediaType string, n int) string {
		info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
		require.True(t, ok)
		out, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), account(n))
		require.NoError(t, err)
		return string(out)
	}
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf} {
		for _, verb := range []string{"create", "update"} {
			require.Equal(t, http.StatusOK, codeOf(t, verb, mediaType, encoded(mediaType, 2000)), mediaType)
			require.Equal(t, http.StatusRequestEntityTooLarge, codeOf(t, verb, mediaType, encoded(mediaType, 2001)), mediaType)
		}
	}
	large := encoded(runtime.ContentTypeJSON, 2001)
	for _, mediaType := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType} {
		require.Equal(t, http.StatusRequestEntityTooLarge, codeOf(t, "patch", string(mediaType), large), mediaType)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, codeOf(t, "patch", string(types.JSONPatchType), "["+strings.TrimSuffix(strings.Repeat(`{"op":"remove","path":"/secrets/0"},`, 1001), ",")+"]"))
	require.Equal(t, http.StatusOK, codeOf(t, "patch", string(types.JSONPatchType), `[{"op":"remove","path":"/secrets/0"}]`))
}

// TestMapLimit checks that objects of any kind with very large maps are rejected in each encoding.
func TestMapLimit(t *testing.T) {
	t.Parallel()
	object := func(n int) map[string]any {
		data := make(map[string]any, n)
		for i := range n {
			data[fmt.Sprint("k", i)] = ""
		}
		return map[string]any{"apiVersion": "example.com/v1", "kind": "Thing", "spec": map[string]any{"l": []any{map[string]any{"data": data}}}}
	}
	for n, expected := range map[int]int{50_000: http.StatusOK, 50_001: http.StatusRequestEntityTooLarge} {
		asJSON, err := json.Marshal(object(n))
		require.NoError(t, err)
		asYAML, err := yaml.Marshal(object(n))
		require.NoError(t, err)
		for mediaType, body := range map[string][]byte{
			runtime.ContentTypeJSON: asJSON, runtime.ContentTypeYAML: asYAML,
			string(types.MergePatchType): asJSON, string(types.ApplyYAMLPatchType): asYAML,
			string(types.JSONPatchType): []byte(`[{"op":"add","path":"/spec","value":` + string(asJSON) + `}]`),
		} {
			verb := "update"
			if strings.Contains(mediaType, "patch") {
				verb = "patch"
			}
			require.Equal(t, expected, codeOf(t, verb, mediaType, string(body)), "%s %d", mediaType, n)
		}
		configMap := &corev1.ConfigMap{Data: map[string]string{}}
		for i := range n {
			configMap.Data[fmt.Sprint("k", i)] = ""
		}
		info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		asProtobuf, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), configMap)
		require.NoError(t, err)
		require.Equal(t, expected, codeFor(t, "configmaps", "create", runtime.ContentTypeProtobuf, string(asProtobuf)))
	}
}

var codecs = serializer.NewCodecFactory(scheme.Scheme)

func codeOf(t *testing.T, verb, mediaType, body string) int {
	return codeFor(t, "serviceaccounts", verb, mediaType, body)
}

func codeFor(t *testing.T, resource, verb, mediaType, body string) int {
	t.Helper()
	served := WithPatchLimit(WithListLimit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }), codecs), codecs)
	reader := bodies.NewReader(ledger.Limits{}, 3<<20, nil)
	handler := reader.Wrap(served, func(*http.Request, *genericapirequest.RequestInfo) bool { return false },
		func(_ http.ResponseWriter, _ *http.Request, err error) { require.NoError(t, err) })
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/namespaces/a/"+resource, strings.NewReader(body))
	r.Header.Set("Content-Type", mediaType)
	r = r.WithContext(genericapirequest.WithRequestInfo(r.Context(), &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: resource}))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
}
