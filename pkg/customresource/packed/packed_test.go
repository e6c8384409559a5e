package packed

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// decoded returns an object as decoded from storage.
func decoded(t testing.TB, data []byte) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	_, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, u)
	require.NoError(t, err)
	return u
}

// pack packs an object, and checks that nothing is lost.
func pack(t testing.TB, p *Packer, text string) *Object {
	t.Helper()
	o := p.Pack(decoded(t, []byte(text)))
	require.Equal(t, decoded(t, []byte(text)), o.Unstructured(), text)
	return o
}

func widget(more string) string {
	return `{"apiVersion":"example.org/v1","kind":"Widget",` + more + `}`
}

// TestRoundTrip: unpacked objects equal the original ones.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	p := NewPacker()
	for _, more := range []string{
		`"metadata":{}`, `"metadata":null`, `"metadata":"text"`, `"metadata":[]`, `"spec":null`,
		`"metadata":{"name":"x","resourceVersion":"7"}`, `"metadata":{"resourceVersion":7}`, `"metadata":{"resourceVersion":""}`,
		`"spec":{}`, `"spec":[]`, `"spec":[[],{},null,"",0,false]`, `"spec":[{},{}]`, `"spec":[1]`, `"spec":[1,2,3]`, `"spec":["a",{"b":[true,1.5]}]`,
		`"spec":{"a":1,"b":1.0,"c":-1,"d":9223372036854775807,"e":"\u0000","f":""}`,
		`"spec":[{"a":1,"b":2},{"a":3,"b":4},{"b":5,"a":6}]`, `"spec":[{"a":1},{"b":2}]`, `"items":[{"kind":"x"}]`,
		`"metadata":{"name":"x"},"spec":{"deep":` + strings.Repeat(`[{"a":`, 2000) + `1` + strings.Repeat(`}]`, 2000) + `}`,
	} {
		for range 2 {
			pack(t, p, widget(more))
		}
	}
	require.True(t, new(Object).IsZero())
	require.Empty(t, new(Object).Unstructured().Object)
}

func layoutAt(o *Object, path ...string) *layout {
	at := o.Value
	for _, name := range path {
		at = at.Field(name)
	}
	return at.layout
}

// TestLayouts: objects with the same structure have the same layout; other objects share equal parts.
func TestLayouts(t *testing.T) {
	t.Parallel()
	p := NewPacker()
	object := func(name, spec string) string {
		return widget(fmt.Sprintf(`"metadata":{"name":%q,"labels":{"a":%q}},"spec":%s`, name, name, spec))
	}
	one := pack(t, p, object("one", `{"n":1,"list":["a","b"]}`))
	two := pack(t, p, object("two", `{"list":[1.5,null],"n":true}`))
	require.Same(t, one.layout, two.layout)
	longer := pack(t, p, object("longer", `{"n":1,"list":["a","b","c"]}`))
	require.NotSame(t, one.layout, longer.layout)
	require.Same(t, layoutAt(one, "metadata"), layoutAt(longer, "metadata"))
	require.NotSame(t, layoutAt(one, "spec"), layoutAt(longer, "spec"))
}

// TestCollisions: layouts with equal hashes are distinguished.
func TestCollisions(t *testing.T) {
	t.Parallel()
	p := NewPacker()
	text := widget(`"metadata":{"name":"x"},"spec":{"a":{"b":"c"}}`)
	pack(t, p, text)
	for hash := range p.layouts.young {
		p.layouts.young[hash] = newObject(0)
	}
	pack(t, p, text)
	p.Texts(map[string]string{"a": "b"})
	for hash := range p.maps.young {
		p.maps.young[hash] = map[string]string{"another": "thing"}
	}
	require.Equal(t, map[string]string{"a": "b"}, p.Texts(map[string]string{"a": "b"}))
}

// TestCachesAreLimited: the caches of a Packer are limited, and keep recently used entries.
func TestCachesAreLimited(t *testing.T) {
	t.Parallel()
	p := newPacker(100<<10, 100<<10)
	first := pack(t, p, widget(`"metadata":{"name":"x"},"spec":{"of":{"use":"yes"}}`))
	for i := range 5000 {
		o := pack(t, p, widget(fmt.Sprintf(`"metadata":{"name":"x%d"},"spec":{"of":{"use":"yes"},"own%d":{"n":1}}`, i, i)))
		require.Same(t, layoutAt(first, "spec", "of"), layoutAt(o, "spec", "of"))
	}
	require.Less(t, len(p.layouts.young)+len(p.layouts.old), 1500)
	require.Less(t, len(p.texts.young)+len(p.texts.old), 3500)
	require.LessOrEqual(t, p.layouts.bytes, p.layouts.most)

	before := len(p.texts.young)
	pack(t, p, widget(fmt.Sprintf(`"spec":%q`, strings.Repeat("x", 50000))))
	require.Len(t, p.texts.young, before, "large strings must not be interned")
}

// TestTexts: equal strings, and equal maps of them, are interned.
func TestTexts(t *testing.T) {
	t.Parallel()
	p := NewPacker()
	keep := func(name string) *Object {
		return p.Pack(decoded(t, []byte(widget(fmt.Sprintf(`"metadata":{"name":%q,"namespace":"space"}`, name)))))
	}
	data := func(o *Object, name string) *byte { return unsafe.StringData(o.field(name).Text()) }
	one, two := keep("one"), keep("two")
	require.Same(t, data(one, "namespace"), data(two, "namespace"))
	require.NotSame(t, data(one, "name"), data(two, "name"))

	labels := p.Texts(map[string]string{"a": "b"})
	require.Equal(t, reflect.ValueOf(labels).Pointer(), reflect.ValueOf(p.Texts(map[string]string{"a": "b"})).Pointer())
	require.NotEqual(t, reflect.ValueOf(labels).Pointer(), reflect.ValueOf(p.Texts(map[string]string{"a": "c"})).Pointer())
	require.Nil(t, p.Texts(nil))
}

// TestMetadata: the metadata of a packed object equal those of an unpacked one.
func TestMetadata(t *testing.T) {
	t.Parallel()
	p := NewPacker()
	for _, metadata := range []string{
		`{}`, `null`, `{"labels":{},"annotations":{"a":1},"finalizers":[]}`, `{"labels":{"a":null},"finalizers":[1],"name":1,"generation":"x"}`,
		`{"name":"n","namespace":"s","generateName":"g","uid":"u","resourceVersion":"7","generation":3,"selfLink":"l","creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":"2026-01-02T03:04:06Z",
		  "deletionGracePeriodSeconds":5,"labels":{"a":"b"},"annotations":{"c":"d"},"finalizers":["f"],"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"o","uid":"w","controller":true}],
		  "managedFields":[{"manager":"m","operation":"Update","time":"2026-01-02T03:04:05Z","fieldsV1":{"f:spec":{}}}]}`,
	} {
		text := widget(`"metadata":` + metadata)
		var u, o metav1.Object = decoded(t, []byte(text)), pack(t, p, text)
		for method := range reflect.TypeFor[metav1.Object]().Methods() {
			if method.Type.NumIn() > 0 {
				continue
			}
			want := reflect.ValueOf(u).MethodByName(method.Name).Call(nil)[0]
			got := reflect.ValueOf(o).MethodByName(method.Name).Call(nil)[0]
			if want.Kind() == reflect.Map && want.Len() == 0 {
				require.Zero(t, got.Len(), "%s of %s", method.Name, metadata)
				continue
			}
			require.Equal(t, want.Interface(), got.Interface(), "%s of %s", method.Name, metadata)
		}
	}
}

// TestSetters: changing a packed object has the same effect as changing an unpacked one, and does not change
// copies.
func TestSetters(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Unix(1e9, 0))
	values := map[reflect.Type]any{}
	for _, value := range []any{
		"changed", types.UID("changed"), int64(9), new(int64), at, &at, map[string]string{"x": "y"}, []string{"z"},
		[]metav1.OwnerReference{{Name: "owner"}}, []metav1.ManagedFieldsEntry{{Manager: "manager"}},
	} {
		values[reflect.TypeOf(value)] = value
	}
	text := widget(`"metadata":{"name":"n","labels":{"a":"b"},"resourceVersion":"1"},"spec":{"a":1}`)
	for method := range reflect.TypeFor[metav1.Object]().Methods() {
		if method.Type.NumIn() == 0 {
			continue
		}
		value := values[method.Type.In(0)]
		require.NotNil(t, value, method.Name)
		u, o := decoded(t, []byte(text)), pack(t, NewPacker(), text)
		copied := o.DeepCopyObject().(*Object)
		for _, obj := range []metav1.Object{u, o} {
			reflect.ValueOf(obj).MethodByName(method.Name).Call([]reflect.Value{reflect.ValueOf(value)})
		}
		require.Equal(t, u, o.Unstructured(), method.Name)
		require.Equal(t, decoded(t, []byte(text)), copied.Unstructured(), method.Name)
	}
	u, o := decoded(t, []byte(text)), pack(t, NewPacker(), text)
	o.SetSelfLink("")
	require.Equal(t, u, o.Unstructured())
	gvk := schema.GroupVersionKind{Group: "another.example.org", Version: "v2", Kind: "Thing"}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	require.Equal(t, gvk, o.GroupVersionKind())
	var bookmark Object
	bookmark.SetResourceVersion("5")
	bookmark.SetAnnotations(map[string]string{"a": "b"})
	require.Equal(t, "5", bookmark.GetResourceVersion())
	require.Equal(t, map[string]string{"a": "b"}, bookmark.GetAnnotations())
}

// FuzzPack: any object that can be decoded is unchanged by packing.
func FuzzPack(f *testing.F) {
	f.Add([]byte(widget(`"metadata":{"name":"x","resourceVersion":"1"},"spec":[{"a":1},{"a":[]}]`)))
	f.Add(storedBinding(1))
	p := NewPacker()
	f.Fuzz(func(t *testing.T, data []byte) {
		u := &unstructured.Unstructured{}
		if _, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, u); err != nil {
			return
		}
		want, err := json.Marshal(u.Object)
		require.NoError(t, err)
		got, err := json.Marshal(p.Pack(u).Unstructured().Object)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}

// TestObjectBytes: the estimate is near the length of the JSON for all kinds of content.
func TestObjectBytes(t *testing.T) {
	for name, fields := range map[string]map[string]any{
		"a text":      {"text": strings.Repeat("x", 10_000)},
		"long names":  {strings.Repeat("x", 10_000): nil},
		"many fields": many(1_000),
		"a list":      {"list": slices.Repeat([]any{map[string]any{"name": "one", "value": int64(1)}}, 1_000)},
		"empty":       {"list": slices.Repeat([]any{[]any{}}, 10_000)},
	} {
		u := &unstructured.Unstructured{Object: fields}
		u.SetAPIVersion("example.com/v1")
		u.SetKind("Widget")
		length, err := u.MarshalJSON()
		require.NoError(t, err)
		require.InDelta(t, 1, float64(NewPacker().Pack(u).Bytes())/float64(len(length)), 0.75, name)
	}
	require.Zero(t, new(Object).Bytes())
}

func many(n int) map[string]any {
	fields := map[string]any{}
	for i := range n {
		fields[fmt.Sprint("field", i)] = true
	}
	return fields
}
