package versions

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// addView adds a view of a schema on a store of its own, as newView does.
func (s *Stores) addView(sch *definitions.Schema, destroy func()) *view {
	raw := &rawStore{Interface: struct{ storage.Interface }{}, resource: sch.Resource, destroy: destroy, users: 1}
	s.stores[sch.Resource] = raw
	v := newView(raw, sch, schema.GroupVersionKind{Version: "v1"}, nil, nil, s.decoded, s.encoded)
	s.views[v] = viewKey{sch.Hash, "v1"}
	s.byKey[viewKey{sch.Hash, "v1"}] = v
	return v
}

// TestNobodyWaitsForAStoreThatEnds: while one store is being destroyed, which
// takes as long as what it has under way, those of other resources are used.
func TestNobodyWaitsForAStoreThatEnds(t *testing.T) {
	t.Parallel()
	s := newStores()
	one, two := newSchema(t, "ones"), newSchema(t, "twos")
	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	v := s.addView(one, func() {
		close(began)
		<-end
	})
	s.addView(two, func() {})
	go func() {
		defer close(ended)
		s.drop(v)
	}()
	<-began
	used := make(chan *view, 1)
	go func() {
		other, done := s.use(two, "v1")
		done()
		used <- other
	}()
	select {
	case other := <-used:
		require.NotNil(t, other)
	case <-time.After(customresourcetest.Deadline):
		t.Error("another resource waits for the store")
	}
	close(end)
	<-ended
	gone, _ := s.use(one, "v1")
	require.Nil(t, gone)
}

// TestAStoreIsNotDestroyedUnderAList: upstream's handler drops a view while it is
// being listed; the store ends with the last list.
func TestAStoreIsNotDestroyedUnderAList(t *testing.T) {
	t.Parallel()
	s := newStores()
	sch, destroyed := newSchema(t, "ones"), 0
	v := s.addView(sch, func() { destroyed++ })
	_, first := s.use(sch, "v1")
	_, second := s.use(sch, "v1")
	s.drop(v)
	none, _ := s.use(sch, "v1")
	require.Nil(t, none, "new lists get another view")
	first()
	first()
	require.Zero(t, destroyed)
	second()
	require.Equal(t, 1, destroyed)
	require.Empty(t, s.stores)
	require.Empty(t, s.views)
}

func newStores() *Stores {
	return New(Config{
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
