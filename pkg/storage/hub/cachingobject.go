package hub

import (
	"bytes"
	"io"
	"sync"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// object is what has metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// cachingObject is an object that several watchers send: it is encoded once for all
// that want the same encoding. Nobody may change it, and who wants to, as the
// contract of runtime.CacheableObject has it, works on a copy.
type cachingObject struct {
	object

	mu      sync.Mutex
	owned   bool // object is a copy
	encoded map[runtime.Identifier]*encoded
	derived map[any]*derived
}

type encoded struct {
	once sync.Once
	data []byte
	err  error
}

// derived is a form of an object, which watchers share as well.
type derived struct {
	once sync.Once
	obj  runtime.Object
	err  error
}

var _ runtime.CacheableObject = (*cachingObject)(nil)

// Unwrap returns the object of an event itself and no copy of it, for readers in
// this process. Nobody may change it: all watchers have the same. An event of an
// object that the hub does not share, such as one of the watch cache, has a copy.
func Unwrap(obj runtime.Object) runtime.Object {
	switch o := obj.(type) {
	case *cachingObject:
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.object
	case runtime.CacheableObject:
		return o.GetObject()
	default:
		return obj
	}
}

// Share returns an object of the hub's for one reader, who may have to wait before he
// encodes it: it is copied no earlier than that.
func Share(obj runtime.Object) runtime.Object {
	if o, ok := obj.(object); ok {
		return &cachingObject{object: o}
	}
	return obj.DeepCopyObject()
}

// share returns what an event's watchers share of an object: all the same, as
// long as one of them has yet to send it. Then the encodings go with it, for
// the history of events would keep too many.
func (e *event) share(h *Hub, obj runtime.Object, as *weak.Pointer[cachingObject]) runtime.Object {
	if _, ok := obj.(object); !ok {
		return obj.DeepCopyObject()
	}
	e.sharing.Lock()
	defer e.sharing.Unlock()
	s := as.Value()
	if s == nil {
		if s, _ = Share(h.shown(obj)).(*cachingObject); s != nil {
			*as = weak.Make(s)
		}
	}
	return s
}

// Derive returns what derive makes of the object, and asks it once for each key.
// derive must not change what it is given, and nobody what it returns.
func (s *cachingObject) Derive(key any, derive func(runtime.Object) (runtime.Object, error)) (runtime.Object, error) {
	s.mu.Lock()
	d := s.derived[key]
	if d == nil {
		d = &derived{}
		if s.derived == nil {
			s.derived = map[any]*derived{}
		}
		s.derived[key] = d
	}
	from := s.object
	s.mu.Unlock()
	d.once.Do(func() {
		if d.obj, d.err = derive(from); d.err != nil {
			return
		}
		if o, ok := d.obj.(object); ok {
			d.obj = &cachingObject{object: o}
		}
	})
	return d.obj, d.err
}

// CacheEncode implements runtime.CacheableObject.
func (s *cachingObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
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
		s.mu.Lock()
		obj := s.object
		s.mu.Unlock()
		// Encoders set the kind in what they encode.
		var data bytes.Buffer
		e.err = encode(Shallow(obj), &data)
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
func (s *cachingObject) GetObject() runtime.Object { return s.object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object.
func (s *cachingObject) DeepCopyObject() runtime.Object { return s.object.DeepCopyObject() }
