package hub

import (
	"maps"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

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
