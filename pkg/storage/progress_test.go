package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestNewCacheDoesNotBlockOthers verifies that consistent lists succeed although the watch cache of another resource was
// filled at a later revision. On a shared stream they would fail until the next write, because etcd reports no
// progress while a watch on the stream starts at a future revision.
func TestNewCacheDoesNotBlockOthers(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	ctx := in(t.Context(), "one")
	first := openAt(t, b, "first")
	list(ctx, t, first, "/first/", listOpts())
	for n := range 10 {
		name := fmt.Sprintf("other%d", n)
		other := openAt(t, b, name)
		pod := newPod("default", "a")
		require.NoError(t, other.Create(ctx, "/"+name+"/default/a", pod, &example.Pod{}, 0))
		later := openAt(t, b, "later"+name)
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		list(short, t, later, "/later"+name+"/", listOpts())
		list(short, t, first, "/first/", listOpts())
		cancel()
	}
}

// openAt opens a storage with a unique key prefix.
func openAt(t *testing.T, b *Backend, name string) storage.Interface {
	t.Helper()
	s, destroy, err := b.Decorator(b.storageConfig(schema.GroupResource{Resource: name}, podCodec(t)), "/"+name,
		func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/"+name+"/", obj) },
		newObject, newList, podAttrs, nil, nil)
	require.NoError(t, err)
	t.Cleanup(destroy)
	return s
}
