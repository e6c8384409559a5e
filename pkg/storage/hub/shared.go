package hub

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// object is what has metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// shared is an object that several watchers send: it is encoded once for all
// that want the same encoding. Nobody may change it, and who wants to, as the
// contract of runtime.CacheableObject has it, works on a copy.
type shared struct {
	object

	mu      sync.Mutex
	owned   bool // object is a copy
	encoded map[runtime.Identifier]*encoded
}

type encoded struct {
	once sync.Once
	data []byte
	err  error
}

var _ runtime.CacheableObject = (*shared)(nil)

// share makes an object one that watchers share.
func share(obj runtime.Object) runtime.Object {
	if o, ok := obj.(object); ok {
		return &shared{object: o}
	}
	return obj.DeepCopyObject()
}

// CacheEncode implements runtime.CacheableObject.
func (s *shared) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	s.mu.Lock()
	e := s.encoded[id]
	if e == nil {
		e = &encoded{}
		if s.encoded == nil {
			s.encoded = map[runtime.Identifier]*encoded{}
		}
		s.encoded[id] = e
	}
	s.mu.Unlock()
	e.once.Do(func() {
		// Encoders set the version in what they encode.
		var data bytes.Buffer
		e.err = encode(s.GetObject(), &data)
		e.data = data.Bytes()
	})
	if e.err != nil {
		return e.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(e.data)
		return nil
	}
	_, err := w.Write(e.data)
	return err
}

// GetObject implements runtime.CacheableObject.
func (s *shared) GetObject() runtime.Object { return s.object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object.
func (s *shared) DeepCopyObject() runtime.Object { return s.object.DeepCopyObject() }
