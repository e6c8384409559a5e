package hub

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestEncodersShare verifies that encoders get a copy whose kind they can set, and which shares large parts.
func TestEncodersShare(t *testing.T) {
	typed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"large": "before"}}
	data := map[string]any{"large": "before"}
	untyped := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}, "data": data}}
	for name, test := range map[string]struct {
		obj    runtime.Object
		change func()
		data   func(runtime.Object) string
	}{
		"typed": {typed, func() { typed.Data["large"] = "after" }, func(obj runtime.Object) string { return obj.(*corev1.ConfigMap).Data["large"] }},
		"unstructured": {untyped, func() { data["large"] = "after" }, func(obj runtime.Object) string {
			s, _, _ := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, "data", "large")
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			event, _ := Share(test.obj).(*cachingObject)
			require.NoError(t, event.CacheEncode("x", func(obj runtime.Object, _ io.Writer) error {
				obj.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
				obj.(metav1.Object).SetResourceVersion("7")
				obj.(metav1.Object).SetLabels(map[string]string{"set": "by the encoder"})
				test.change() // only to detect shared memory
				require.Equal(t, "after", test.data(obj))
				return nil
			}, io.Discard))
			require.Empty(t, test.obj.GetObjectKind().GroupVersionKind())
			require.Empty(t, test.obj.(metav1.Object).GetResourceVersion())
			require.Empty(t, test.obj.(metav1.Object).GetLabels())
		})
	}
}

// nested is an object that encoders modify in place, opaque one with unknown parts.
type nested struct{ corev1.ConfigMap }

func (*nested) EncodeNestedObjects(runtime.Encoder) error { return nil }

type opaque struct{ *corev1.ConfigMap }

// TestShallowCopiesOtherTypesDeeply verifies that objects of other types are deeply copied.
func TestShallowCopiesOtherTypesDeeply(t *testing.T) {
	held := corev1.ConfigMap{Data: map[string]string{"a": "before"}}
	for _, obj := range []runtime.Object{&nested{held}, opaque{&held}, &opaque{&held}} {
		copied, ok := Shallow(obj).(*corev1.ConfigMap)
		require.True(t, ok, "DeepCopyObject returns the embedded type")
		copied.Data["a"] = "after"
		require.Equal(t, "before", held.Data["a"])
	}
}
