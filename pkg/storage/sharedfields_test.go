package storage

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestSharedFields: equal sets of fields of objects with the same name are shared, and sharing never changes a set.
func TestSharedFields(t *testing.T) {
	unshared := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		cm, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return nil, nil, errors.New("unexpected type")
		}
		set := fields.Set(maps.Collect(maps.All(cm.Data)))
		set["metadata.name"], set["metadata.namespace"] = cm.Name, cm.Namespace
		return cm.Labels, set, nil
	}
	attrs := (&fieldSets{seed: maphash.MakeSeed()}).sharing(unshared)

	object := func(name string, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"a": "b"}}, Data: data}
	}
	of := func(name string, data map[string]string) fields.Set {
		obj := object(name, data)
		l, f, err := attrs(obj)
		require.NoError(t, err)
		require.Equal(t, obj.Labels, map[string]string(l))
		return f
	}
	same := func(a, b fields.Set) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	same2 := func(name string, data map[string]string) bool {
		return same(of(name, maps.Clone(data)), of(name, maps.Clone(data)))
	}
	one := map[string]string{"phase": "Active"}
	require.True(t, same2("one", map[string]string{}))
	require.True(t, same2("one", one))
	require.False(t, same(of("one", maps.Clone(one)), of("two", maps.Clone(one))))
	require.False(t, same2("one", map[string]string{"phase": "Active", "more": ""}), "sets with many fields must not be shared")
	require.False(t, same2("one", map[string]string{"phase": strings.Repeat("x", 300)}), "sets with long values must not be shared")
	for range 2 {
		for i := range 20000 {
			name, data := fmt.Sprint("name", i%10000), map[string]string{"phase": fmt.Sprint(i % 3)}
			_, want, err := unshared(object(name, data))
			require.NoError(t, err)
			require.Equal(t, want, of(name, data))
		}
	}
	_, _, err := attrs(&runtime.Unknown{})
	require.Error(t, err)

	named := func(runtime.Object) (labels.Set, fields.Set, error) {
		return nil, fields.Set{"metadata.name": "one"}, nil
	}
	b := backendOf(t, BackendConfig{})
	opened, destroy, err := b.Decorator(b.storageConfig(podsGR, podCodec(t)), "/pods", podKey, newObject, newList, named, nil, nil)
	require.NoError(t, err)
	t.Cleanup(destroy)
	ofOpened := func() fields.Set {
		_, f, err := opened.(*tenantStorage).getAttrs(newPod("ns", "one"))
		require.NoError(t, err)
		return f
	}
	require.True(t, same(ofOpened(), ofOpened()), "opened resources must share fields")
}
