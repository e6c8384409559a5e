package hub

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// object is an API object.
type object interface {
	runtime.Object
	metav1.Object
}

// cachingObject is an object that several watchers send. It is encoded once per encoding. It is read-only;
// as required by runtime.CacheableObject, a caller that modifies it works on a copy.
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

// derived is a form of an object that watchers share, too.
type derived struct {
	once sync.Once
	obj  runtime.Object
	err  error
}

var _ runtime.CacheableObject = (*cachingObject)(nil)

// Unwrap returns the object of an event without copying, for readers in this process. It must not be
// modified, because all watchers share it. An object that the hub does not share, e.g. one of the watch
// cache, is copied.
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

// Share wraps an object of the hub for one reader, which may encode it later. It is not copied before that.
func Share(obj runtime.Object) runtime.Object {
	if o, ok := obj.(object); ok {
		return &cachingObject{object: o}
	}
	return obj.DeepCopyObject()
}

// Derive returns the result of derive for the object, which is computed once for each key. derive must not
// modify its argument, and its result must not be modified.
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
		// Encoders set the kind of the object.
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

func (s *cachingObject) GetObject() runtime.Object      { return s.object.DeepCopyObject() }
func (s *cachingObject) DeepCopyObject() runtime.Object { return s.object.DeepCopyObject() }

// own returns a private copy for the setters, because the object belongs to the watch cache. No code is
// known to call them. As with upstream's implementation, a caller must not share the object.
func (s *cachingObject) own() object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owned {
		if copied, ok := s.object.DeepCopyObject().(object); ok {
			s.object, s.owned = copied, true
		}
	}
	s.encoded = nil
	return s.object
}

func (s *cachingObject) SetNamespace(v string)               { s.own().SetNamespace(v) }
func (s *cachingObject) SetName(v string)                    { s.own().SetName(v) }
func (s *cachingObject) SetGenerateName(v string)            { s.own().SetGenerateName(v) }
func (s *cachingObject) SetUID(v types.UID)                  { s.own().SetUID(v) }
func (s *cachingObject) SetResourceVersion(v string)         { s.own().SetResourceVersion(v) }
func (s *cachingObject) SetGeneration(v int64)               { s.own().SetGeneration(v) }
func (s *cachingObject) SetSelfLink(v string)                { s.own().SetSelfLink(v) }
func (s *cachingObject) SetCreationTimestamp(v metav1.Time)  { s.own().SetCreationTimestamp(v) }
func (s *cachingObject) SetDeletionTimestamp(v *metav1.Time) { s.own().SetDeletionTimestamp(v) }
func (s *cachingObject) SetDeletionGracePeriodSeconds(v *int64) {
	s.own().SetDeletionGracePeriodSeconds(v)
}
func (s *cachingObject) SetLabels(v map[string]string)                  { s.own().SetLabels(v) }
func (s *cachingObject) SetAnnotations(v map[string]string)             { s.own().SetAnnotations(v) }
func (s *cachingObject) SetFinalizers(v []string)                       { s.own().SetFinalizers(v) }
func (s *cachingObject) SetOwnerReferences(v []metav1.OwnerReference)   { s.own().SetOwnerReferences(v) }
func (s *cachingObject) SetManagedFields(v []metav1.ManagedFieldsEntry) { s.own().SetManagedFields(v) }
