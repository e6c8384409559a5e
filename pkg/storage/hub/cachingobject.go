package hub

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// The setters of shared objects work on a copy of their own, since the object
// is that of the watch cache. Nothing is known to call them; who does must not
// share the object with others, as with upstream's.

// own returns the object for changing it.
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

// SetNamespace implements metav1.Object.
func (s *cachingObject) SetNamespace(namespace string) { s.own().SetNamespace(namespace) }

// SetName implements metav1.Object.
func (s *cachingObject) SetName(name string) { s.own().SetName(name) }

// SetGenerateName implements metav1.Object.
func (s *cachingObject) SetGenerateName(name string) { s.own().SetGenerateName(name) }

// SetUID implements metav1.Object.
func (s *cachingObject) SetUID(uid types.UID) { s.own().SetUID(uid) }

// SetResourceVersion implements metav1.Object.
func (s *cachingObject) SetResourceVersion(version string) { s.own().SetResourceVersion(version) }

// SetGeneration implements metav1.Object.
func (s *cachingObject) SetGeneration(generation int64) { s.own().SetGeneration(generation) }

// SetSelfLink implements metav1.Object.
func (s *cachingObject) SetSelfLink(link string) { s.own().SetSelfLink(link) }

// SetCreationTimestamp implements metav1.Object.
func (s *cachingObject) SetCreationTimestamp(timestamp metav1.Time) {
	s.own().SetCreationTimestamp(timestamp)
}

// SetDeletionTimestamp implements metav1.Object.
func (s *cachingObject) SetDeletionTimestamp(timestamp *metav1.Time) {
	s.own().SetDeletionTimestamp(timestamp)
}

// SetDeletionGracePeriodSeconds implements metav1.Object.
func (s *cachingObject) SetDeletionGracePeriodSeconds(seconds *int64) {
	s.own().SetDeletionGracePeriodSeconds(seconds)
}

// SetLabels implements metav1.Object.
func (s *cachingObject) SetLabels(labels map[string]string) { s.own().SetLabels(labels) }

// SetAnnotations implements metav1.Object.
func (s *cachingObject) SetAnnotations(annotations map[string]string) {
	s.own().SetAnnotations(annotations)
}

// SetFinalizers implements metav1.Object.
func (s *cachingObject) SetFinalizers(finalizers []string) { s.own().SetFinalizers(finalizers) }

// SetOwnerReferences implements metav1.Object.
func (s *cachingObject) SetOwnerReferences(references []metav1.OwnerReference) {
	s.own().SetOwnerReferences(references)
}

// SetManagedFields implements metav1.Object.
func (s *cachingObject) SetManagedFields(fields []metav1.ManagedFieldsEntry) {
	s.own().SetManagedFields(fields)
}
