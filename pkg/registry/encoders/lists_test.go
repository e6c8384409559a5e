package encoders

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kserializer "k8s.io/apimachinery/pkg/runtime/serializer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	scheme = func() *apiruntime.Scheme {
		s := apiruntime.NewScheme()
		if err := errors.Join(corev1.AddToScheme(s), rbacv1.AddToScheme(s)); err != nil {
			panic(err)
		}
		return s
	}()
	codecs = kserializer.NewCodecFactory(scheme, kserializer.WithStreamingCollectionEncodingToJSON())
)

func encoders(t *testing.T, mediaType string, gv schema.GroupVersion) (ours, upstream apiruntime.Encoder) {
	t.Helper()
	info, ok := apiruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	require.True(t, ok)
	return Serializer(codecs).EncoderForVersion(info.Serializer, gv), codecs.EncoderForVersion(info.Serializer, gv)
}

func configMaps(n, size int) *corev1.ConfigMapList {
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "<token>"}}
	for i := range n {
		list.Items = append(list.Items, corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0))},
			Data:       map[string]string{"text": strings.Repeat("<é>", size*(i%7))},
		})
	}
	return list
}

// Long and short lists, of small and large objects, have the same bytes as upstream's, and the same identifier.
func TestSameBytes(t *testing.T) {
	roles := &rbacv1.RoleList{Items: make([]rbacv1.Role, 3*long)}
	for name, list := range map[string]apiruntime.Object{
		"nil items":     &corev1.ConfigMapList{},
		"empty":         configMaps(0, 0),
		"short":         configMaps(long-1, 10),
		"long":          configMaps(long, 10),
		"longer":        configMaps(20*long+1, 1),
		"large objects": configMaps(2*long, 5_000),
		"roles":         roles,
		"no list":       &corev1.ConfigMap{Data: map[string]string{"a": "b"}},
		"mixed":         &corev1.List{Items: make([]apiruntime.RawExtension, 2*long)},
	} {
		for _, mediaType := range []string{apiruntime.ContentTypeJSON, apiruntime.ContentTypeProtobuf} {
			t.Run(name+" as "+mediaType, func(t *testing.T) {
				gv := corev1.SchemeGroupVersion
				if list == apiruntime.Object(roles) {
					gv = rbacv1.SchemeGroupVersion
				}
				ours, upstream := encoders(t, mediaType, gv)
				require.Equal(t, upstream.Identifier(), ours.Identifier())
				var got, want bytes.Buffer
				wantErr := upstream.Encode(list, &want)
				gotErr := ours.Encode(list, &got)
				require.Equal(t, wantErr, gotErr)
				require.True(t, bytes.Equal(want.Bytes(), got.Bytes()))
			})
		}
	}
}

// brokenWriter fails after some bytes.
type brokenWriter int

var errBroken = errors.New("the client has disconnected")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if *w -= brokenWriter(len(p)); *w < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

// The encoding and its workers end if the client disconnects.
func TestClientDisconnects(t *testing.T) {
	ours, _ := encoders(t, apiruntime.ContentTypeJSON, corev1.SchemeGroupVersion)
	for _, after := range []brokenWriter{0, 1, 100, 200_000} {
		require.ErrorIs(t, ours.Encode(configMaps(10*long, 100), &after), errBroken)
	}
}

// failing is an object that cannot be encoded.
type failing struct {
	corev1.ConfigMap
	fail string
}

func (f *failing) DeepCopyObject() apiruntime.Object { return f }

func (f *failing) MarshalJSON() ([]byte, error) {
	switch f.fail {
	case "error":
		return nil, errBroken
	case "panic":
		panic(errBroken)
	}
	return []byte("{}"), nil
}

type failingList struct {
	metav1.TypeMeta
	metav1.ListMeta `json:"metadata"`
	Items           []failing `json:"items"`
}

func (f *failingList) DeepCopyObject() apiruntime.Object { return f }

// An object that cannot be encoded fails the list. A panic is propagated to the goroutine of the request.
func TestFailures(t *testing.T) {
	info, _ := apiruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), apiruntime.ContentTypeJSON)
	list := &failingList{Items: make([]failing, 5*long)}
	list.Items[4*long].fail = "error"
	require.ErrorIs(t, listEncoder{info.Serializer}.Encode(list, io.Discard), errBroken)
	list.Items[4*long].fail = "panic"
	require.Panics(t, func() { _ = listEncoder{info.Serializer}.Encode(list, io.Discard) })
}
