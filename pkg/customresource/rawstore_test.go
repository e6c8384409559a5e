package customresource

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// addView adds a view of a schema on a store of its own, as newView does.
func (s *rawStores) addView(sch *Schema, destroy func()) *view {
	key := rawKey{resource: sch.Resource}
	raw := &rawStore{Interface: struct{ storage.Interface }{}, key: key, destroy: destroy, users: 1}
	s.stores[key] = raw
	v := newView(raw, sch, schema.GroupVersionKind{Version: "v1"}, nil, s.decoded, s.encoded)
	s.views[v] = viewKey{sch.Hash, "v1"}
	s.byKey[viewKey{sch.Hash, "v1"}] = v
	return v
}

// TestNobodyWaitsForAStoreThatEnds: while one store is being destroyed, which
// takes as long as what it has under way, those of other resources are used.
func TestNobodyWaitsForAStoreThatEnds(t *testing.T) {
	s := newRawStores(nil, nil, nil)
	one, two := newSchema(schemaInput(t, "ones")), newSchema(schemaInput(t, "twos"))
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
	case <-time.After(deadline):
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
	s := newRawStores(nil, nil, nil)
	sch, destroyed := newSchema(schemaInput(t, "ones")), 0
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

// TestListOutlivesServingInfo: a list that began before its definition was
// deleted and its serving info released reads on.
func TestListOutlivesServingInfo(t *testing.T) {
	s := startServer(t, startEtcd(t), serverOptions{release: 20 * time.Millisecond})
	s.createCRD(t, "one", widgetCRD(nil))
	_, err := s.dynamic(t, "one").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	sch := s.objects.entry("one", "widgets.example.com").schema
	store, done, err := s.listStore(sch, sch.version("v1"))
	require.NoError(t, err)
	s.deleteCRD(t, "one", "widgets.example.com")
	require.Eventually(t, func() bool {
		s.raws.mu.Lock()
		defer s.raws.mu.Unlock()
		return len(s.raws.byKey) == 0
	}, deadline, tick, "upstream's handler drops the view")
	_, err = store.List(clusterContext(t, "one"), nil)
	require.NoError(t, err)
	done()
	s.raws.mu.Lock()
	defer s.raws.mu.Unlock()
	require.Empty(t, s.raws.stores)
}

func schemaInput(t *testing.T, plural string) (hash string, in hashInput) {
	t.Helper()
	spec := widgetCRD(nil).Spec
	spec.Names.Plural = plural
	in = hashInput{Spec: &spec, Names: &spec.Names}
	hash, err := in.hash()
	require.NoError(t, err)
	return hash, in
}
