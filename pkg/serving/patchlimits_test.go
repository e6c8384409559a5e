package serving

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// TestListLimit verifies that objects are rejected in each encoding before anything compares their lists.
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
		info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
		require.True(t, ok)
		out, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), account(n))
		require.NoError(t, err)
		return string(out)
	}
	code := func(verb, mediaType, body string) int {
		served := WithPatchLimit(WithListLimit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }), scheme.Codecs), scheme.Codecs)
		reader := bodies.NewReader(ledger.Limits{}, 3<<20, nil)
		handler := reader.Wrap(served, func(*http.Request, *genericapirequest.RequestInfo) bool { return false }, func(http.ResponseWriter, *http.Request, error) {})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/namespaces/a/serviceaccounts", strings.NewReader(body))
		r.Header.Set("Content-Type", mediaType)
		r = r.WithContext(genericapirequest.WithRequestInfo(r.Context(), &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: "serviceaccounts"}))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf} {
		for _, verb := range []string{"create", "update"} {
			require.Equal(t, http.StatusOK, code(verb, mediaType, encoded(mediaType, 2000)), mediaType)
			require.Equal(t, http.StatusRequestEntityTooLarge, code(verb, mediaType, encoded(mediaType, 2001)), mediaType)
		}
	}
	large := encoded(runtime.ContentTypeJSON, 2001)
	for _, mediaType := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType} {
		require.Equal(t, http.StatusRequestEntityTooLarge, code("patch", string(mediaType), large), mediaType)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, code("patch", string(types.JSONPatchType), "["+strings.TrimSuffix(strings.Repeat(`{"op":"remove","path":"/secrets/0"},`, 1001), ",")+"]"))
	require.Equal(t, http.StatusOK, code("patch", string(types.JSONPatchType), `[{"op":"remove","path":"/secrets/0"}]`))
}
