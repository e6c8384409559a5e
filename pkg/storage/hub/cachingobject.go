package hub

import (
	"bytes"
	"io"
	"maps"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

type object interface {
	runtime.Object
	metav1.Object
}

// cachingObject is an object that several watchers send. It is encoded once per encoding. It is read-only;
// as required by runtime.CacheableObject, a caller that modifies it works on a copy.
type cachingObject struct {
	object

	mu    sync.Mutex
	owned bool // object is a copy
	// encoded and derived are the encodings and other forms of the object, which are computed once.
	encoded map[runtime.Identifier]func() ([]byte, error)
	derived map[any]func() (runtime.Object, error)
}

// once returns compute's result for the object, which is computed once for each key of known.
func once[K comparable, V any](s *cachingObject, known *map[K]func() (V, error), key K, compute func(from runtime.Object) (V, error)) (V, error) {
	s.mu.Lock()
	result := (*known)[key]
	if result == nil {
		from := s.object
		result = sync.OnceValues(func() (V, error) { return compute(from) })
		if *known == nil {
			*known = map[K]func() (V, error){}
		}
		(*known)[key] = result
	}
	s.mu.Unlock()
	return result()
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
	return once(s, &s.derived, key, func(from runtime.Object) (runtime.Object, error) {
		obj, err := derive(from)
		if o, ok := obj.(object); ok && err == nil {
			obj = &cachingObject{object: o}
		}
		return obj, err
	})
}

func (s *cachingObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	data, err := once(s, &s.encoded, id, func(from runtime.Object) ([]byte, error) {
		// Encoders set the kind of the object.
		var data bytes.Buffer
		err := encode(Shallow(from), &data)
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

// Shallow returns a shallow copy of an object. The caller may set its kind and replace fields of its
// metadata, e.g. set labels, but must not modify anything they refer to. This suffices for encoders and is
// much cheaper than a deep copy, which objects of unknown types get.
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
