package customresource

import (
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestListOutlivesServingInfo: a list continues after its definition was deleted and the serving info
// released.
func TestListOutlivesServingInfo(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{release: 20 * time.Millisecond})
	s.CreateCRD(t, "one", widgetCRD(nil))
	_, err := s.Dynamic(t, "one").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	ctx := genericapirequest.WithNamespace(request.WithClusterName(t.Context(), "one"), "")
	lister, done := s.listerOf(t, "one")
	watcher, ok := lister.(rest.Watcher)
	require.True(t, ok)
	w, err := watcher.Watch(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	defer w.Stop()
	s.DeleteCRD(t, "one", "widgets.example.com")
	require.Eventually(t, func() bool {
		select {
		case _, open := <-w.ResultChan():
			return !open
		default:
			return false
		}
	}, deadline, tick, "upstream's handler drops the view")
	_, err = lister.List(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, 1, s.opened.custom())
	done()
	require.Zero(t, s.opened.custom())
}

// listerOf returns the lister for widgets of a logical cluster as JSON; it may be used until done is called.
func (s *testServer) listerOf(t *testing.T, cluster logicalcluster.Name) (lister rest.Lister, done func()) {
	t.Helper()
	lookup := definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: widgets.GroupResource(), Version: "v1"}
	d, err := s.sources.Resolve(t.Context(), lookup)
	require.NoError(t, err)
	lister, done, err = s.stores.Lister(d.Schema, d.Schema.Version("v1"))
	require.NoError(t, err)
	return lister, done
}
