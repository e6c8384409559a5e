package hub

import (
	"bytes"
	"io"
	"maps"
	"reflect"
	"sync"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

type object interface {
	runtime.Object
	metav1.Object
}

// cachingObject is an object that several watchers send. It is encoded once per encoding. It is read-only, because
// the object belongs to the watch cache. Readers must call setters only on the copy that GetObject returns.
type cachingObject struct {
	object

	mu sync.Mutex
	// encoded and derived are the encodings and other forms of the object, which are computed once.
	encoded map[runtime.Identifier]func() ([]byte, error)
	derived map[any]func() (runtime.Object, error)
}

// once returns compute's result, which is computed once for each key of known.
func once[K comparable, V any](s *cachingObject, known *map[K]func() (V, error), key K, compute func() (V, error)) (V, error) {
	s.mu.Lock()
	result := (*known)[key]
	if result == nil {
		result = sync.OnceValues(compute)
		if *known == nil {
			*known = map[K]func() (V, error){}
		}
		(*known)[key] = result
	}
	s.mu.Unlock()
	return result()
}

var _ runtime.CacheableObject = (*cachingObject)(nil)

// Unwrap returns the object of an event without copying, for readers in this process. It must not be modified,
// because all watchers share it. An object that the hub does not share is copied.
func Unwrap(obj runtime.Object) runtime.Object {
	switch o := obj.(type) {
	case *cachingObject:
		return o.object
	case runtime.CacheableObject:
		return o.GetObject()
	default:
		return obj
	}
}

// Share wraps an object of the hub for one reader, which may encode it later. The object is not copied
// before it is encoded.
func Share(obj runtime.Object) runtime.Object {
	if o, ok := obj.(object); ok {
		return &cachingObject{object: o}
	}
	return obj.DeepCopyObject()
}

// sharedObject is an object that watchers share until all have sent it, so that the history keeps no encodings.
type sharedObject struct {
	mu      sync.Mutex
	wrapped weak.Pointer[cachingObject]
}

// get returns the wrapped object, and calls original if it does not exist any more.
func (s *sharedObject) get(original func() runtime.Object) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wrapped := s.wrapped.Value(); wrapped != nil {
		return wrapped
	}
	obj := Share(original())
	if wrapped, ok := obj.(*cachingObject); ok {
		s.wrapped = weak.Make(wrapped)
	}
	return obj
}

// Derive returns the result of derive for the object, which is computed once for each key and must not be modified.
func (s *cachingObject) Derive(key any, derive func(runtime.Object) (runtime.Object, error)) (runtime.Object, error) {
	return once(s, &s.derived, key, func() (runtime.Object, error) {
		obj, err := derive(s.object)
		if o, ok := obj.(object); ok && err == nil {
			obj = &cachingObject{object: o}
		}
		return obj, err
	})
}

func (s *cachingObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	data, err := once(s, &s.encoded, id, func() ([]byte, error) {
		// Encoders set the kind of the object.
		var data bytes.Buffer
		err := encode(Shallow(s.object), &data)
		return data.Bytes(), err
	})
	if err != nil {
		return err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(data)
		return nil
	}
	_, err = w.Write(data)
	return err
}

func (s *cachingObject) GetObject() runtime.Object      { return s.object.DeepCopyObject() }
func (s *cachingObject) DeepCopyObject() runtime.Object { return s.object.DeepCopyObject() }

// Shallow returns a shallow copy of an object, or a deep copy for unknown types. The caller may set its kind and replace
// fields of its metadata, e.g. set labels, but must not modify anything they refer to. This suffices for encoders.
func Shallow(obj runtime.Object) runtime.Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		own := maps.Clone(u.Object)
		if metadata, ok := own["metadata"].(map[string]any); ok {
			own["metadata"] = maps.Clone(metadata)
		}
		return &unstructured.Unstructured{Object: own}
	}
	// Objects with nested objects encode these in place.
	if _, nested := obj.(runtime.NestedObjectEncoder); nested || !copiesAsStruct(reflect.TypeOf(obj)) {
		return obj.DeepCopyObject()
	}
	own := reflect.New(reflect.TypeOf(obj).Elem())
	own.Elem().Set(reflect.ValueOf(obj).Elem())
	copied, _ := reflect.TypeAssert[runtime.Object](own)
	return copied
}

// asStructs caches for types of objects whether they are pointers to structs with TypeMeta and ObjectMeta.
var asStructs sync.Map

func copiesAsStruct(t reflect.Type) bool {
	if known, ok := asStructs.Load(t); ok {
		return known == true
	}
	has := func(name string, of reflect.Type) bool {
		field, ok := t.Elem().FieldByName(name)
		return ok && len(field.Index) == 1 && field.Type == of
	}
	is := t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct &&
		has("TypeMeta", reflect.TypeFor[metav1.TypeMeta]()) && has("ObjectMeta", reflect.TypeFor[metav1.ObjectMeta]())
	asStructs.Store(t, is)
	return is
}
