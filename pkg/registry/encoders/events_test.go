package encoders

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
)

// eventCodecs are upstream's.
func eventCodecs(tb testing.TB) kserializer.CodecFactory {
	tb.Helper()
	scheme := runtime.NewScheme()
	require.NoError(tb, corev1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return kserializer.NewCodecFactory(scheme)
}

// encoderOf returns the encoder of watch events in a media type.
func encoderOf(tb testing.TB, s runtime.NegotiatedSerializer, mediaType string) runtime.EncoderWithAllocator {
	tb.Helper()
	info, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), mediaType)
	require.True(tb, ok)
	e, ok := s.EncoderForVersion(info.StreamSerializer.Serializer, corev1.SchemeGroupVersion).(runtime.EncoderWithAllocator)
	require.True(tb, ok, "upstream requires an encoder with an allocator")
	return e
}

// event returns the event that upstream creates for an object.
func event(tb testing.TB, s runtime.NegotiatedSerializer, mediaType string, kind watch.EventType, obj runtime.Object) *metav1.WatchEvent {
	tb.Helper()
	info, _ := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), mediaType)
	var raw bytes.Buffer
	require.NoError(tb, s.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(obj, &raw))
	return &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw.Bytes()}}
}

var object = &corev1.ConfigMap{
	ObjectMeta: metav1.ObjectMeta{Name: "a", ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`)}}},
	Data:       map[string]string{"odd": "<&>\u2028\n\"}\n", "é": "\xff"},
}

// Events have the same bytes as upstream's, with any content.
func TestSameEvents(t *testing.T) {
	upstream := eventCodecs(t)
	ours := Serializer(upstream)
	raw := func(kind, object string) *metav1.WatchEvent {
		return &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: []byte(object)}}
	}
	const json = runtime.ContentTypeJSON
	for name, test := range map[string]struct {
		event *metav1.WatchEvent
		as    string
		fast  bool // if it is JSON
	}{
		"added":         {event(t, upstream, json, watch.Added, object), json, true},
		"bookmark":      {event(t, upstream, json, watch.Bookmark, &corev1.ConfigMap{}), json, true},
		"error":         {event(t, upstream, json, watch.Error, &metav1.Status{Message: "<no>"}), json, true},
		"empty":         {raw("ADDED", "{}\n"), json, true},
		"several lines": {raw("ADDED", "{\n}\n"), json, false},
		"no newline":    {raw("ADDED", `{"a": "<"}`), json, false},
		"no object":     {raw("ADDED", "null\n"), json, false},
		"odd type":      {raw(`A"<`, "{}\n"), json, false},
		"not encoded":   {&metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Object: object}}, json, false},
		"protobuf":      {event(t, upstream, runtime.ContentTypeProtobuf, watch.Added, object), runtime.ContentTypeProtobuf, true},
		"YAML":          {event(t, upstream, json, watch.Added, object), runtime.ContentTypeYAML, true},
	} {
		t.Run(name, func(t *testing.T) {
			var want, got, allocated bytes.Buffer
			if test.as == runtime.ContentTypeYAML {
				info, _ := runtime.SerializerInfoForMediaType(upstream.SupportedMediaTypes(), test.as)
				require.NoError(t, upstream.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(test.event, &want))
				require.NoError(t, ours.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(test.event, &got))
				require.Equal(t, want.String(), got.String())
				return
			}
			e := encoderOf(t, ours, test.as)
			require.Equal(t, encoderOf(t, upstream, test.as).Identifier(), e.Identifier())
			require.NoError(t, encoderOf(t, upstream, test.as).Encode(test.event, &want))
			require.NoError(t, e.Encode(test.event, &got))
			require.NoError(t, e.EncodeWithAllocator(test.event, &allocated, &runtime.Allocator{}))
			require.Equal(t, want.String(), got.String())
			require.Equal(t, want.String(), allocated.String())
			fast, err := writeEvent(test.event, io.Discard)
			require.NoError(t, err)
			require.Equal(t, test.fast && test.as == json, fast && test.as == json)
		})
	}
}
