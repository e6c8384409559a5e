package versions

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

// addVersionStore adds a store of a schema's version on its own shared store, as newVersionStore does.
func (s *Stores) addVersionStore(sch *definitions.Schema, destroy func()) *versionStore {
	raw := &rawStore{Interface: struct{ storage.Interface }{}, resource: sch.Resource, destroy: destroy, users: 1}
	s.stores[sch.Resource] = raw
	v := newVersionStore(raw, sch, schema.GroupVersionKind{Version: "v1"}, nil, nil, s.decoded, s.encoded)
	s.byStore[v] = versionKey{sch.Hash, "v1"}
	s.byKey[versionKey{sch.Hash, "v1"}] = v
	return v
}

// TestDestroyingDoesNotBlockOthers: other resources can be used while a store is being destroyed, which waits
// for its pending requests.
func TestDestroyingDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	s := newStores()
	one, two := newSchema(t, "ones"), newSchema(t, "twos")
	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	v := s.addVersionStore(one, func() {
		close(began)
		<-end
	})
	s.addVersionStore(two, func() {})
	go func() {
		defer close(ended)
		s.drop(v)
	}()
	<-began
	used := make(chan *versionStore, 1)
	go func() {
		other, done := s.use(two, "v1")
		done()
		used <- other
	}()
	select {
	case other := <-used:
		require.NotNil(t, other)
	case <-time.After(customresourcetest.Deadline):
		t.Error("another resource waited for the destruction of the store")
	}
	close(end)
	<-ended
	removed, _ := s.use(one, "v1")
	require.Nil(t, removed)
}

// TestListKeepsStore: if upstream's handler drops a store during a list, the store is destroyed after the
// list.
func TestListKeepsStore(t *testing.T) {
	t.Parallel()
	s := newStores()
	sch, destroyed := newSchema(t, "ones"), 0
	v := s.addVersionStore(sch, func() { destroyed++ })
	_, first := s.use(sch, "v1")
	_, second := s.use(sch, "v1")
	s.drop(v)
	none, _ := s.use(sch, "v1")
	require.Nil(t, none, "new lists must not get the dropped store")
	first()
	first()
	require.Zero(t, destroyed)
	second()
	require.Equal(t, 1, destroyed)
	require.Empty(t, s.stores)
	require.Empty(t, s.byStore)
}

func newStores() *Stores {
	return NewVersionStores(Config{
		Storage:    func(func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter { return nil },
		MetricName: func(resource schema.GroupResource) schema.GroupResource { return resource },
	})
}

func newSchema(t *testing.T, plural string) *definitions.Schema {
	t.Helper()
	spec := customresourcetest.WidgetCRD(nil).Spec
	spec.Names.Plural = plural
	s, err := definitions.NewSchema(&spec, &spec.Names)
	require.NoError(t, err)
	return s
}
