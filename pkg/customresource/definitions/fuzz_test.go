package definitions

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
)

// FuzzDecoding: decoding a definition returns the same result whether its spec is interned or not.
func FuzzDecoding(f *testing.F) {
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
	plain := apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	f.Fuzz(func(t *testing.T, data []byte) { requireSameDecoding(t, plain, data) })
}

// requireSameDecoding decodes a document again after its spec was interned.
func requireSameDecoding(t *testing.T, plain runtime.Codec, data []byte) {
	t.Helper()
	interning := internCodec{Codec: plain, interner: newInterner()}
	want, wantErr := runtime.Decode(plain, data)
	for range 2 {
		got, err := runtime.Decode(interning, data)
		if wantErr != nil {
			continue // was decoded before
		}
		require.NoError(t, err)
		if _, ok := want.(*apiextensions.CustomResourceDefinition); ok {
			require.Equal(t, want, got)
		}
	}
}
