package versions

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// decodeWith decodes an object as the watch cache does.
func decodeWith(t *testing.T, codec rawCodec, text string) map[string]any {
	t.Helper()
	obj, _, err := codec.Decode([]byte(text), nil, nil)
	require.NoError(t, err)
	u, ok := obj.(*unstructured.Unstructured)
	require.True(t, ok)
	plain, _, err := unstructured.UnstructuredJSONScheme.Decode([]byte(text), nil, nil)
	require.NoError(t, err)
	require.Equal(t, plain, obj, "sharing changes nothing")
	return u.Object
}

func at(object any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			object = object.(map[string]any)[step]
		case int:
			object = object.([]any)[step]
		}
	}
	return object
}

func isShared(a, b any, path ...any) bool {
	return reflect.ValueOf(at(a, path...)).Pointer() == reflect.ValueOf(at(b, path...)).Pointer()
}

// TestSharing: decoded objects have in common what is equal, and nothing else.
func TestSharing(t *testing.T) {
	object := func(name, number, list string) string {
		return fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":%q,"labels":{"a":"b"},"managedFields":[{"manager":"m","time":%q,"fieldsV1":{"f:spec":{"f:x":{},".":{}}}}]},
			"spec":{"same":{"a":[1,{"b":true}],"c":null},"number":{"n":%s},"list":%s}}`, name, name, number, list)
	}
	codec := newRawCodec(newSharer(sharedBytes))
	one := decodeWith(t, codec, object("one", "1", `["a","b"]`))
	two := decodeWith(t, codec, object("two", "2", `["b","a"]`))
	three := decodeWith(t, codec, object("three", "1.0", `["a","b"]`))
	for _, other := range []map[string]any{two, three} {
		require.True(t, isShared(one, other, "metadata", "managedFields", 0, "fieldsV1"))
		require.True(t, isShared(one, other, "spec", "same"))
		require.False(t, isShared(one, other, "metadata"))
		require.False(t, isShared(one, other, "metadata", "labels"), "metadata are changed after decoding")
		require.False(t, isShared(one, other, "spec", "number"), "1 is not 1.0")
		require.False(t, isShared(one, other, "spec"))
	}
	require.False(t, isShared(one, two, "spec", "list"), "order counts in lists")
	require.True(t, isShared(one, three, "spec", "list"))
	again := decodeWith(t, codec, object("again", "1", `["a","b"]`))
	require.True(t, isShared(one, again, "spec"))
}

// TestSharedManagers: the entries of managed fields are shared as a whole where they are equal, and
// what watch caches keep of labels, names and namespaces.
func TestSharedManagers(t *testing.T) {
	object := func(uid, time string) string {
		return fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"x","namespace":"y","uid":%q,"labels":{"a":"b"},"managedFields":[{"manager":"m","time":%q,"fieldsV1":{"f:spec":{}}}]}}`, uid, time)
	}
	s := newSharer(sharedBytes)
	codec := newRawCodec(s)
	one, same, later := decodeWith(t, codec, object("1", "now")), decodeWith(t, codec, object("2", "now")), decodeWith(t, codec, object("3", "later"))
	require.True(t, isShared(one, same, "metadata", "managedFields", 0))
	require.False(t, isShared(one, same, "metadata", "managedFields"), "an entry may be put in place of another")
	require.False(t, isShared(one, later, "metadata", "managedFields", 0))

	labels, names, err := s.attributes(&unstructured.Unstructured{Object: one})
	require.NoError(t, err)
	for _, other := range []map[string]any{same, later} {
		u := &unstructured.Unstructured{Object: other}
		l, n, err := s.attributes(u)
		require.NoError(t, err)
		require.True(t, isShared(labels, l))
		require.True(t, isShared(names, n))
		u.SetName("another")
		_, n, err = s.attributes(u)
		require.NoError(t, err)
		require.False(t, isShared(names, n))
		require.Equal(t, "another", n["metadata.name"])
		require.Equal(t, "x", names["metadata.name"])
	}
}

// TestSharerForgets: what a sharer keeps is bounded, and what is of use stays.
func TestSharerForgets(t *testing.T) {
	s := newSharer(100 << 10)
	codec := newRawCodec(s)
	text := func(i int) string {
		return fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"of":{"use":"yes"},"own":{"n":%d}}}`, i)
	}
	first := decodeWith(t, codec, text(0))
	for i := range 10000 {
		require.True(t, isShared(first, decodeWith(t, codec, text(i+1)), "spec", "of"))
	}
	require.Less(t, len(s.young)+len(s.old), 1000)
	require.LessOrEqual(t, s.bytes, s.most)

	// Text counts, and what is too large is not kept.
	s = newSharer(100 << 10)
	codec = newRawCodec(s)
	for i := range 100 {
		decodeWith(t, codec, fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"text":"%d %s"}}`, i, strings.Repeat("x", 5000)))
	}
	require.Less(t, len(s.young)+len(s.old), 50)
	before := len(s.young)
	decodeWith(t, codec, fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"x"},"spec":%q}`, strings.Repeat("x", 50000)))
	decodeWith(t, codec, fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"text":%q}}`, strings.Repeat("x", 50000)))
	require.Len(t, s.young, before)
}

// TestSharerCollisions: what only has the hash of something else is not taken for it.
func TestSharerCollisions(t *testing.T) {
	s := newSharer(sharedBytes)
	codec := newRawCodec(s)
	text := `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"a":{"b":"c"}}}`
	decodeWith(t, codec, text)
	for hash := range s.young {
		s.young[hash] = map[string]any{"another": "thing"}
	}
	decodeWith(t, codec, text)
}
