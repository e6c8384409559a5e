// Package watchevents encodes watch events of built-in objects as JSON. Upstream encodes an object, and then the event
// with the encoded object, which processes each byte again. This package copies the encoded object.
package watchevents

import (
	"bytes"
	"io"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// plainJSON identifies the encoder that is replaced: JSON, but neither pretty nor YAML.
var plainJSON = jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{}).Identifier()

// Serializer returns s with a faster encoding of events. The output is the same.
func Serializer(s runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	return negotiated{s}
}

type negotiated struct {
	runtime.NegotiatedSerializer
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s negotiated) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	plain := e.Identifier() == plainJSON
	e = s.NegotiatedSerializer.EncoderForVersion(e, gv)
	if allocating, ok := e.(runtime.EncoderWithAllocator); ok && plain {
		return encoder{allocating}
	}
	return e
}

type encoder struct {
	runtime.EncoderWithAllocator
}

// Encode implements runtime.Encoder.
func (e encoder) Encode(obj runtime.Object, w io.Writer) error {
	if ok, err := write(obj, w); ok {
		return err
	}
	return e.EncoderWithAllocator.Encode(obj, w)
}

// EncodeWithAllocator implements runtime.EncoderWithAllocator.
func (e encoder) EncodeWithAllocator(obj runtime.Object, w io.Writer, memAlloc runtime.MemoryAllocator) error {
	if ok, err := write(obj, w); ok {
		return err
	}
	return e.EncoderWithAllocator.EncodeWithAllocator(obj, w, memAlloc)
}

// write writes an event whose object is one line of JSON. It returns false for other objects.
func write(obj runtime.Object, w io.Writer) (bool, error) {
	event, ok := obj.(*metav1.WatchEvent)
	if !ok || event.Object.Object != nil {
		return false, nil
	}
	line, ok := bytes.CutSuffix(event.Object.Raw, []byte("}\n"))
	if !ok || !bytes.HasPrefix(line, []byte("{")) || bytes.IndexByte(line, '\n') >= 0 {
		return false, nil
	}
	for _, r := range event.Type {
		if !unicode.IsUpper(r) {
			return false, nil
		}
	}
	for _, piece := range []string{`{"type":"`, event.Type, `","object":`} {
		if _, err := io.WriteString(w, piece); err != nil {
			return true, err
		}
	}
	if _, err := w.Write(line); err != nil {
		return true, err
	}
	_, err := io.WriteString(w, "}}\n")
	return true, err
}
