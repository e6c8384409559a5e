package hub

import (
	"maps"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Shallow returns a copy of an object for those who set its kind, or replace fields of its
// metadata, and change nothing that these hold: labels, say, can be set and not changed in
// place. All else it shares with the object. That is what encoders do, and it costs a small
// part of a deep copy, which objects of unknown kinds are.
func Shallow(obj runtime.Object) runtime.Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		own := maps.Clone(u.Object)
		if metadata, ok := own["metadata"].(map[string]any); ok {
			own["metadata"] = maps.Clone(metadata)
		}
		return &unstructured.Unstructured{Object: own}
	}
	// What has objects in it encodes these in place.
	if _, nested := obj.(runtime.NestedObjectEncoder); nested || !copiesAsStruct(reflect.TypeOf(obj)) {
		return obj.DeepCopyObject()
	}
	own := reflect.New(reflect.TypeOf(obj).Elem())
	own.Elem().Set(reflect.ValueOf(obj).Elem())
	copied, _ := reflect.TypeAssert[runtime.Object](own)
	return copied
}

// asStructs says of types of objects whether they are pointers to structs with kind and
// metadata as values.
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
