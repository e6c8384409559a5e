package storage

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/storage/value"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// sealer is a transformer that depends on the key of the object, like encryption.
type sealer struct{ resources []schema.GroupResource }

func (s *sealer) TransformerForResource(resource schema.GroupResource) value.Transformer {
	s.resources = append(s.resources, resource)
	return s
}

func (*sealer) TransformFromStorage(_ context.Context, data []byte, key value.Context) (out []byte, stale bool, err error) {
	out, ok := bytes.CutPrefix(data, append([]byte("sealed:"), key.AuthenticatedData()...))
	if !ok {
		return nil, false, errors.New("sealed for another key")
	}
	return out, false, nil
}

func (*sealer) TransformToStorage(_ context.Context, data []byte, key value.Context) ([]byte, error) {
	return append(append([]byte("sealed:"), key.AuthenticatedData()...), data...), nil
}

func TestHeader(t *testing.T) {
	now := metav1.NewTime(time.Unix(1700000000, 0))
	m := metav1.ObjectMeta{
		Name: "a", UID: "u", DeletionTimestamp: &now, Finalizers: []string{"foregroundDeletion"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: "b", UID: "v"}},
	}
	want := Header{UID: "u", DeletionTimestamp: &now, Finalizers: m.Finalizers, OwnerReferences: m.OwnerReferences}
	typed := &corev1.ConfigMap{ObjectMeta: m, Data: map[string]string{"ownerReferences": "none"}}
	var encoded bytes.Buffer
	codec := clientscheme.Codecs.EncoderForVersion(protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme), corev1.SchemeGroupVersion)
	require.NoError(t, codec.Encode(typed, &encoded))
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	require.NoError(t, err)
	content["Metadata"] = map[string]any{"uid": "of a field with a similar name"}
	u := &unstructured.Unstructured{Object: content}
	u.SetAPIVersion("example.com/v1")
	u.SetKind("Widget")
	json, err := u.MarshalJSON()
	require.NoError(t, err)

	plain := &Backend{cfg: BackendConfig{Prefix: DefaultPrefix}}
	sealing := &sealer{}
	sealed := &Backend{cfg: BackendConfig{Prefix: DefaultPrefix, Transformers: sealing}}
	for name, stored := range map[string][]byte{"protobuf": encoded.Bytes(), "JSON": json} {
		t.Run(name, func(t *testing.T) {
			require.False(t, Plain(stored))
			got, err := plain.Header(t.Context(), "/core/configmaps/c/n/a", stored)
			require.NoError(t, err)
			got.DeletionTimestamp = &metav1.Time{Time: got.DeletionTimestamp.Local()}
			require.Equal(t, want, got)

			key := "/core/configmaps:-custom/:1f/c/n/a"
			out, err := sealing.TransformToStorage(t.Context(), stored, value.DefaultContext(DefaultPrefix+key))
			require.NoError(t, err)
			require.False(t, Plain(out))
			_, err = sealed.Header(t.Context(), key, out)
			require.NoError(t, err)
			require.Equal(t, schema.GroupResource{Resource: "configmaps"}, sealing.resources[len(sealing.resources)-1])
			_, err = sealed.Header(t.Context(), "/core/configmaps/c/n/a", out)
			require.ErrorContains(t, err, "decrypting /core/configmaps/c/n/a")
		})
	}
	_, err = plain.Header(t.Context(), "/example.com/widgets/c/a", []byte(`{"metadata":{"ownerReferences":3}}`))
	require.ErrorContains(t, err, "decoding /example.com/widgets/c/a")
	_, err = plain.Header(t.Context(), "/core/secrets/c/n/a", []byte("k8s\x00\xff"))
	require.ErrorContains(t, err, "decoding /core/secrets/c/n/a")
}

func TestPlain(t *testing.T) {
	for stored, plain := range map[string]bool{
		`{"metadata":{"uid":"u","finalizers":["x"]},"spec":{"a":1}}`:          true,
		`{"metadata":{"uid":"u","ownerReferences":[]}}`:                       false,
		`{"metadata":{"uid":"u","deletionTimestamp":"2026-01-01T00:00:00Z"}}`: false,
		`{"metadata":{"uid":"u"},"data":{"ownerReferences":"x"}}`:             false,
		"k8s\x00":             false,
		"":                    false,
		"k8s:enc:aescbc:v1:{": false,
	} {
		require.Equal(t, plain, Plain([]byte(stored)), stored)
	}
}
