package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

func (s shown) watchOf(o offering) watch.Interface {
	s.t.Helper()
	of, err := s.offered(o)
	require.NoError(s.t, err)
	b, err := s.boardOf(s.t.Context(), of, o)
	require.NoError(s.t, err)
	w, err := reader{b.Read(asIs(o)), s.Replicas, offeringOf{o, of}}.Watch(s.t.Context(), &metainternalversion.ListOptions{})
	require.NoError(s.t, err)
	return w
}

// next returns the name of the object of the next event, or "" at the end of the watch.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return ""
		}
		return e.Object.(client.Object).GetName() //nolint:forcetypeassert // as of all events
	case <-time.After(testTimeout):
		require.FailNow(t, "timeout waiting for an event")
		return ""
	}
}

// TestReferences: the objects that an export with virtual storage refers to may be missing, invalid or changed. Readers get
// an error with the reason until it is fixed.
func TestReferences(t *testing.T) {
	const slices = "CachedResourceEndpointSlice"
	s := start(t)
	one := s.offers("aaaa", "ones")
	s.offers("aaaa", "twos")
	s.waitSynced(one)
	s.runs()
	restore := func() {
		s.slice("aaaa", "ones", "ones")
		s.export("aaaa", "ones", "ones", slices, "ones", "id")
	}
	for message, change := range map[string]func(){
		"the CachedResourceEndpointSlice none of the provider does not exist":                            func() { s.export("aaaa", "ones", "ones", slices, "none", "id") },
		"the ClusterCachedResourceEndpointSlice ones of the provider does not exist":                     func() { s.export("aaaa", "ones", "ones", "Cluster"+slices, "ones", "id") },
		"does not refer to an endpoint slice of a cached resource":                                       func() { s.export("aaaa", "ones", "ones", "ConfigMap", "ones", "id") },
		"the CachedResource twos of the provider replicates twos.example.org":                            func() { s.export("aaaa", "ones", "ones", slices, "twos", "id") },
		"the CachedResource ones of the provider has another identity than storage.virtual.identityHash": func() { s.export("aaaa", "ones", "ones", slices, "ones", "f00") },
		"the APIExport ones no longer offers them":                                                       func() { s.export("aaaa", "ones", "twos", slices, "twos", "id") },
		"the CachedResource none of the provider does not exist":                                         func() { s.slice("aaaa", "ones", "none") },
		"the CachedResourceEndpointSlice ones of the provider does not exist": func() {
			s.here.Delete(t, kinds.CachedResourceEndpointSlices.GroupVersionResource, "", "aaaa", "", "ones")
		},
	} {
		w := s.watchOf(one)
		require.Equal(t, "of-ones", next(t, w))
		change()
		require.Empty(t, next(t, w), "%s: the watches must end", message)
		_, err := s.requests(one)
		require.ErrorContains(t, err, message)
		restore()
		s.waitSynced(one)
		s.mustServe(one, "of-ones")
	}
}

// TestWatchesOfOtherExportsContinue: the watches of one export end when it refers to another source, while those of other exports with
// the former source continue.
func TestWatchesOfOtherExportsContinue(t *testing.T) {
	s := start(t)
	one := s.offers("aaaa", "ones")
	requestedAgain := s.export("aaaa", "again", "ones", "CachedResourceEndpointSlice", "ones", "id")
	s.waitSynced(one, requestedAgain)
	s.consumersOf(&requestedAgain.export, requestedAgain.export)
	s.waitFollowing(1)
	ends, goesOn := s.watchOf(one), s.watchOf(requestedAgain)
	require.Equal(t, "of-ones", next(t, ends))
	require.Equal(t, "of-ones", next(t, goesOn))
	s.export("aaaa", "ones", "ones", "CachedResourceEndpointSlice", "none", "id")
	require.Empty(t, next(t, ends))
	s.replica("aaaa", "ones", "more")
	require.Equal(t, "more", next(t, goesOn))
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watches) == 1
	}, testTimeout, time.Millisecond, "the ended watch must be removed")
}
