// Package packed stores custom resources compactly for watch caches. Objects with the same structure, i.e. the
// same nested field names, share one layout, and each object contains only its values. Equal strings are
// interned. Decoded objects need four times as much memory, mainly for small maps.
package packed

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is a packed object; the zero value is none. Copies share immutable content, so that copying the
// struct copies the object. It can be read concurrently.
type Object struct {
	layout          *layout
	values          []any
	resourceVersion string
}

var _ runtime.Object = (*Object)(nil)

// List is a list of packed objects.
type List struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []Object
}

// DeepCopyObject implements runtime.Object.
func (l *List) DeepCopyObject() runtime.Object {
	c := &List{TypeMeta: l.TypeMeta, Items: slices.Clone(l.Items)}
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	return c
}

// IsZero reports whether there is no object.
func (o *Object) IsZero() bool { return o.layout == nil }

// Unstructured returns the unpacked object, which the caller may change and keep.
func (o *Object) Unstructured() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if o.layout != nil {
		u.Object = o.layout.object(o.values)
	}
	if o.resourceVersion != "" {
		u.SetResourceVersion(o.resourceVersion)
	}
	return u
}

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	c := *o
	return &c
}

// GetObjectKind implements runtime.Object.
func (o *Object) GetObjectKind() schema.ObjectKind { return o }

// Value returns the content of the object without the resource version.
func (o *Object) Value() Value {
	if o.layout == nil {
		return Value{}
	}
	return Value{layout: o.layout, values: o.values}
}

// Bytes estimates the length of the object's JSON.
func (o *Object) Bytes() int64 {
	if o.layout == nil {
		return 0
	}
	return o.layout.written(o.values)
}

// Value is a value in an object; the zero value is missing.
type Value struct {
	layout *layout
	values []any
}

// IsZero reports whether the value is missing. Null is not missing.
func (v Value) IsZero() bool { return len(v.values) == 0 && v.layout == nil }

// IsObject reports whether the value is an object, which has fields.
func (v Value) IsObject() bool { return v.layout != nil && !v.layout.isList }

// IsNull reports whether the value is null.
func (v Value) IsNull() bool { return v.layout == nil && len(v.values) == 1 && v.values[0] == nil }

// Field returns a field of an object, or the zero value.
func (v Value) Field(name string) Value {
	if v.layout == nil {
		return Value{}
	}
	i, ok := slices.BinarySearch(v.layout.names, name)
	if !ok {
		return Value{}
	}
	below, values := v.layout.below[i], v.values[v.layout.starts[i]:]
	return Value{layout: below, values: values[:below.size()]}
}

// Any returns the unpacked value, which the caller may change and keep; nil if it is missing.
func (v Value) Any() any {
	if v.IsZero() {
		return nil
	}
	return v.layout.unpack(v.values)
}

// Text returns the value if it is a string.
func (v Value) Text() string {
	if v.layout != nil || len(v.values) == 0 {
		return ""
	}
	text, _ := v.values[0].(string)
	return text
}

// Texts returns a map of strings, in which null is empty; nil if the value is empty or something else.
func (v Value) Texts() map[string]string {
	if v.layout == nil || len(v.layout.names) == 0 {
		return nil
	}
	all := make(map[string]string, len(v.layout.names))
	for i, name := range v.layout.names {
		if v.layout.below[i] != nil {
			return nil
		}
		value := v.values[v.layout.starts[i]]
		text, ok := value.(string)
		if !ok && value != nil {
			return nil
		}
		all[name] = text
	}
	return all
}

// HasPrefix reports whether the name of a field begins with prefix.
func (v Value) HasPrefix(prefix string) bool {
	if v.layout == nil {
		return false
	}
	i, _ := slices.BinarySearch(v.layout.names, prefix)
	return i < len(v.layout.names) && strings.HasPrefix(v.layout.names[i], prefix)
}
