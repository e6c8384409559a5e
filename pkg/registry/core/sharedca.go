package core

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// rootCA is the name of the ConfigMap with the root CA, which exists in each namespace.
const rootCA = "kube-root-ca.crt"

// ShareCA returns a codec that shares the content of all ConfigMaps with the root CA, to reduce the memory of the watch
// cache.
func ShareCA(codec runtime.Codec) runtime.Codec { return caCodec{codec} }

type caCodec struct{ runtime.Codec }

// Decode implements runtime.Decoder.
func (c caCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if m, ok := obj.(*corev1.ConfigMap); ok && m.Name == rootCA {
		for key, value := range m.Data {
			m.Data[key] = unique.Make(value).Value()
		}
	}
	return obj, kind, err
}
