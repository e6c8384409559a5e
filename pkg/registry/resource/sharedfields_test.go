package resource

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// TestSharedFields: equal sets of fields of objects with the same name are shared, and sharing never changes a set.
func TestSharedFields(t *testing.T) {
	resource := things()
	resource.Selectable = func(cm *corev1.ConfigMap) fields.Set { return maps.Collect(maps.All(cm.Data)) }
	store := &memory{}
	groups := []Group{{GroupVersion: oneVersion, Resources: []Definition{resource}}}
	b := builder(t, store, groups...)
	_, err := b.Build(groups)
	require.NoError(t, err)
	defer b.Destroy()

	of := func(attrs apistorage.AttrFunc, name string, data map[string]string) fields.Set {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"a": "b"}}, Data: data}
		l, f, err := attrs(obj)
		require.NoError(t, err)
		require.Equal(t, obj.Labels, map[string]string(l))
		return f
	}
	same := func(a, b fields.Set) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	same2 := func(name string, data map[string]string) bool {
		return same(of(store.attrs, name, maps.Clone(data)), of(store.attrs, name, maps.Clone(data)))
	}
	one := map[string]string{"phase": "Active"}
	require.True(t, same2("one", map[string]string{}))
	require.True(t, same2("one", one))
	require.False(t, same(of(store.attrs, "one", maps.Clone(one)), of(store.attrs, "two", maps.Clone(one))))
	require.False(t, same2("one", map[string]string{"phase": "Active", "more": ""}), "sets with many fields must not be shared")
	require.False(t, same2("one", map[string]string{"phase": strings.Repeat("x", 300)}), "sets with long values must not be shared")
	for range 2 {
		for i := range 500 {
			name, data := fmt.Sprint("name", i%100), map[string]string{"phase": fmt.Sprint(i % 3)}
			require.Equal(t, of(resource.attrs, name, maps.Clone(data)), of(store.attrs, name, maps.Clone(data)))
		}
	}
	_, _, err = store.attrs(&runtime.Unknown{})
	require.Error(t, err)
}
