package definitions

import (
	"bytes"
	"encoding/json"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// internCodec is the storage codec of definitions; it interns what it decodes.
// A spec that is known is not decoded again, which is nearly all there is to
// decode: it is found in what is stored, without decoding, and compared.
type internCodec struct {
	apiruntime.Codec
	interner *interner
}

// Decode implements runtime.Decoder.
func (c internCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into apiruntime.Object) (apiruntime.Object, *schema.GroupVersionKind, error) {
	from, to, ok := findSpec(data)
	if !ok {
		return c.Codec.Decode(data, defaults, into)
	}
	if spec := c.interner.known(data[from:to]); spec != nil {
		if crd, ok := decodeAround(data, from, to, into); ok {
			spec.give(crd)
			gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
			return crd, &gvk, nil
		}
	}
	obj, gvk, err := c.Codec.Decode(data, defaults, into)
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok || err != nil || crd.Spec.Conversion == nil || !json.Valid(data[from:to]) {
		return obj, gvk, err // there is nothing to share, or to tell it by
	}
	c.interner.intern(data[from:to], &crd.Spec).give(crd)
	return obj, gvk, nil
}

// decodeAround decodes a definition but for its spec.
func decodeAround(data []byte, from, to int, into apiruntime.Object) (*apiextensions.CustomResourceDefinition, bool) {
	var stored struct {
		Metadata metav1.ObjectMeta                              `json:"metadata"`
		Status   apiextensionsv1.CustomResourceDefinitionStatus `json:"status"`
	}
	around := slices.Concat(data[:from], []byte("{}"), data[to:])
	if utiljson.Unmarshal(around, &stored) != nil {
		return nil, false
	}
	crd, ok := into.(*apiextensions.CustomResourceDefinition)
	if into != nil && !ok {
		return nil, false
	}
	if crd == nil {
		crd = &apiextensions.CustomResourceDefinition{}
	}
	*crd = apiextensions.CustomResourceDefinition{ObjectMeta: stored.Metadata}
	err := apiextensionsv1.Convert_v1_CustomResourceDefinitionStatus_To_apiextensions_CustomResourceDefinitionStatus(&stored.Status, &crd.Status, nil)
	return crd, err == nil
}

// How definitions are stored: by our own encoder, which writes fields in order.
var (
	storedStart  = []byte(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",`)
	storedSpec   = []byte(`,"spec":{`)
	storedStatus = []byte(`,"status":{`)
)

// findSpec finds the value of the field spec of a stored definition, without
// decoding it. It looks for what comes before and after; so what it finds is
// the spec if it is JSON by itself, which is to be checked once.
func findSpec(data []byte) (from, to int, ok bool) {
	if !bytes.HasPrefix(data, storedStart) {
		return 0, 0, false
	}
	from, to = bytes.Index(data, storedSpec), bytes.LastIndex(data, storedStatus)
	if from < 0 || to < from {
		return 0, 0, false
	}
	from += len(storedSpec) - 1
	return from, to, to > from && !bytes.Contains(data[to:], storedSpec)
}
