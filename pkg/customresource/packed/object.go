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
type Object struct{ content }

// content is the content of an Object. It implements metav1.Object and schema.ObjectKind.
type content struct {
	Value // without the resource version

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

// Unstructured returns the unpacked object, which the caller may change and keep.
func (o *content) Unstructured() *unstructured.Unstructured {
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

// layout describes the structure of a value: nil is a scalar value, which is stored as it is. It is immutable.
type layout struct {
	// names are the fields of an object, in order; below are the layouts of the fields, or of the items of a
	// list. If all items have the same layout, below contains only the first.
	names  []string
	below  []*layout
	starts []int // index of each field's first value among those of the object
	isList bool
	length int // of a list
	values int // number of all values
}

func (l *layout) size() int {
	if l == nil {
		return 1
	}
	return l.values
}

func (l *layout) item(i int) *layout {
	if len(l.below) == 1 {
		return l.below[0]
	}
	return l.below[i]
}

// bytes estimates the memory of a layout without those below it.
func (l *layout) bytes() int {
	const own, name, field = 144, 16, 16
	sum := own + len(l.below)*field
	for _, n := range l.names {
		sum += name + len(n)
	}
	return sum
}

// appendValues appends the values of a value, and reports whether it has the layout l.
func (l *layout) appendValues(to []any, value any) ([]any, bool) {
	switch v := value.(type) {
	case map[string]any:
		if l == nil || l.isList || len(v) != len(l.names) {
			return to, false
		}
		for i, name := range l.names {
			field, ok := v[name]
			if !ok {
				return to, false
			}
			if to, ok = l.below[i].appendValues(to, field); !ok {
				return to, false
			}
		}
		return to, true
	case []any:
		if l == nil || !l.isList || len(v) != l.length {
			return to, false
		}
		for i, item := range v {
			var ok bool
			if to, ok = l.item(i).appendValues(to, item); !ok {
				return to, false
			}
		}
		return to, true
	default:
		return append(to, value), l == nil
	}
}

func (l *layout) unpack(values []any) any {
	switch {
	case l == nil:
		return values[0]
	case l.isList:
		list := make([]any, l.length)
		for i := range list {
			item := l.item(i)
			list[i] = item.unpack(values)
			values = values[item.size():]
		}
		return list
	default:
		return l.object(values)
	}
}

func (l *layout) object(values []any) map[string]any {
	object := make(map[string]any, len(l.names))
	for i, name := range l.names {
		object[name] = l.below[i].unpack(values[l.starts[i]:])
	}
	return object
}

// written estimates the length of the JSON.
func (l *layout) written(values []any) int64 {
	const punctuation, other = 4, 8 // quotes, a colon and a comma; numbers etc.
	switch {
	case l == nil:
		if text, ok := values[0].(string); ok {
			return punctuation + int64(len(text))
		}
		return other
	case l.isList:
		sum := int64(punctuation)
		for i := range l.length {
			item := l.item(i)
			sum += item.written(values)
			values = values[item.size():]
		}
		return sum
	default:
		sum := int64(punctuation)
		for i, name := range l.names {
			sum += punctuation + int64(len(name)) + l.below[i].written(values[l.starts[i]:])
		}
		return sum
	}
}

// newObject and newList return layouts to which fields, in order, or items must be added before end.
func newObject(fields int) *layout {
	return &layout{names: make([]string, 0, fields), below: make([]*layout, 0, fields), starts: make([]int, 0, fields)}
}

func newList(items int) *layout {
	return &layout{isList: true, length: items, below: make([]*layout, 0, items)}
}

func (l *layout) addItem(below *layout) {
	l.below = append(l.below, below)
	l.values += below.size()
}

func (l *layout) end() {
	if !l.isList || l.length < 2 {
		return
	}
	for _, below := range l.below {
		if below != l.below[0] {
			return
		}
	}
	l.below = []*layout{l.below[0]}
}

// equal compares layouts. The layouts below them must be identical if they are equal.
func (l *layout) equal(o *layout) bool {
	return l.isList == o.isList && l.length == o.length && slices.Equal(l.names, o.names) && slices.Equal(l.below, o.below)
}
