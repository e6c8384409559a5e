package cachedresources

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

var (
	flavors = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "flavors"}
	one     = apis.Publisher{Resource: apis.CachedResources, Cluster: "one", Name: "x"}
	two     = apis.Publisher{Resource: apis.ClusterCachedResources, Cluster: "two", Name: "x"}
)

func publication(change ...func(*apis.Publication)) *apis.Publication {
	p := &apis.Publication{Resource: flavors, Kind: "Flavor", Identity: "f00", Selector: labels.Everything(), Revision: 5}
	for _, c := range change {
		c(p)
	}
	return p
}

func object(cluster logicalcluster.Name, name string, l map[string]string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Name: name, Labels: l, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}}
}

// TestPublications: an identity serves the selections of its publishers, each in its own logical cluster,
// until all are removed.
func TestPublications(t *testing.T) {
	x := NewCachedResourceIndex(nil)
	lookup := definitions.Lookup{Cluster: request.Cluster{Wildcard: true}, Resource: flavors.GroupResource(), Version: "v1", Identity: "f00"}
	d, err := x.Resolve(t.Context(), lookup)
	require.NoError(t, err)
	require.Nil(t, d)
	require.NoError(t, x.Publish(one, publication(func(p *apis.Publication) { p.Selector = labels.SelectorFromSet(labels.Set{"a": "b"}) })))
	require.NoError(t, x.Publish(two, publication(func(p *apis.Publication) { p.Names = []string{"n"} })))
	d, err = x.Resolve(t.Context(), lookup)
	require.NoError(t, err)
	require.Equal(t, "Flavor", d.Schema.Names().Kind)
	require.Empty(t, d.Identity, "objects of a CustomResourceDefinition must have no identity")
	require.Equal(t, 2, d.Only.Len())

	replicated := publication().Replicated().GroupResource()
	require.Equal(t, "flavors:f00.example.org", replicated.String())
	for _, c := range []struct {
		object   *metav1.ObjectMeta
		selected bool
	}{
		{object("one", "n", map[string]string{"a": "b"}), true},
		{object("one", "n", nil), false},
		{object("two", "n", nil), true},
		{object("two", "m", nil), false},
		{object("three", "n", map[string]string{"a": "b"}), false},
	} {
		require.Equal(t, c.selected, x.Selects(replicated, c.object), "%v", c.object)
	}
	require.False(t, x.Selects(schema.GroupResource{Group: "example.org", Resource: "flavors:f01"}, object("one", "n", nil)))

	x.Withdraw(one, 6)
	require.Equal(t, 1, d.Only.Len())
	as, by, ok := x.Published(one)
	require.True(t, ok)
	require.Equal(t, 2, by)
	require.Equal(t, publication().Replicated(), as)
	x.Forget(one)
	x.Forget(one)
	_, by, _ = x.Published(two)
	require.Equal(t, 1, by)
	x.Reset()
	_, _, ok = x.Published(two)
	require.False(t, ok)
	require.Zero(t, d.Only.Len(), "current readers must no longer select objects")
	d, err = x.Resolve(t.Context(), lookup)
	require.NoError(t, err)
	require.Nil(t, d)
}

// TestConflictingCachedResources: of two cached resources of one logical cluster for the same resource, only one is replicated,
// with the same identity or different ones.
func TestConflictingCachedResources(t *testing.T) {
	rival := one
	rival.Resource = apis.ClusterCachedResources
	none := func(p *apis.Publication) { p.Selector = nil }
	another := func(p *apis.Publication) { p.Identity = "f01" }
	for name, change := range map[string]func(*apis.Publication){"same identity": func(*apis.Publication) {}, "two identities": another} {
		t.Run(name, func(t *testing.T) {
			x := NewCachedResourceIndex(nil)
			selected := func(p *apis.Publication) bool {
				return x.Selects(p.Replicated().GroupResource(), object("one", "n", nil))
			}
			require.NoError(t, x.Publish(one, publication()))
			require.NoError(t, x.Publish(one, publication()), "publishing again must not fail")
			var already *apis.CachedAlreadyError
			require.ErrorAs(t, x.Publish(rival, publication(change)), &already)
			require.Equal(t, one, already.By)
			require.ErrorContains(t, already, "example.org/v1, Resource=flavors is already cached by the cachedresources x")
			_, _, ok := x.Published(rival)
			require.False(t, ok)

			// Another version is another resource; another logical cluster is independent.
			require.NoError(t, x.Publish(rival, publication(another, func(p *apis.Publication) { p.Resource.Version = "v2" })))
			x.Forget(rival)
			require.NoError(t, x.Publish(two, publication(change)))

			// Removing an earlier publication does not affect the other cached resource.
			for range 2 {
				require.NoError(t, x.Publish(rival, publication(change, none)))
				require.True(t, selected(publication()))
				x.Withdraw(rival, 6)
				require.True(t, selected(publication()))
				x.Forget(rival)
				require.True(t, selected(publication()))
			}

			// It is published when the first one is removed, not when that one selects no objects.
			x.Withdraw(one, 7)
			require.False(t, selected(publication()))
			require.ErrorAs(t, x.Publish(rival, publication(change)), &already)
			x.Forget(one)
			require.NoError(t, x.Publish(rival, publication(change)))
			require.True(t, selected(publication(change)))
			require.ErrorAs(t, x.Publish(one, publication()), &already)
			require.Equal(t, rival, already.By)
			x.Forget(rival)
			x.Forget(two)
			require.Empty(t, x.owners)
		})
	}
}

// TestAPIs: objects of an export are served with its definition. Different APIs never share an identity. A
// single publisher may change the API; readers then restart.
func TestAPIs(t *testing.T) {
	as, err := customresource.OpaqueSchema(flavors, "Bound")
	require.NoError(t, err)
	x := NewCachedResourceIndex(func(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
		require.Equal(t, "abc", l.Identity)
		require.True(t, l.Cluster.Wildcard)
		return &definitions.Definition{Schema: as, Identity: "abc"}, nil
	})
	bound := func(p *apis.Publication) { p.API = "abc" }
	notified := 0
	defer x.Subscribe(func(definitions.Change) { notified++ })()
	require.NoError(t, x.Publish(one, publication()))
	before, err := x.Resolve(t.Context(), definitions.Lookup{Resource: flavors.GroupResource(), Identity: "f00"})
	require.NoError(t, err)
	require.Zero(t, notified)
	require.NoError(t, x.Publish(one, publication(bound)))
	require.Equal(t, 1, notified)
	require.Zero(t, before.Only.Len())
	d, err := x.Resolve(t.Context(), definitions.Lookup{Resource: flavors.GroupResource(), Identity: "f00"})
	require.NoError(t, err)
	require.Equal(t, "Bound", d.Schema.Names().Kind)
	require.Equal(t, "abc", d.Only.Identity())

	require.ErrorContains(t, x.Publish(two, publication()), "use a separate identity secret for each")
	require.ErrorContains(t, x.Publish(two, publication(bound, func(p *apis.Publication) { p.Resource.Version = "v2" })), "in another version")
	require.ErrorContains(t, x.Publish(two, publication(bound, func(p *apis.Publication) { p.Kind = "Taste" })), "of another API or kind")
	require.NoError(t, x.Publish(two, publication(bound)))
	require.Error(t, x.Publish(two, publication()), "an identity with several publishers must not change its API")
	require.NoError(t, x.Publish(two, publication(func(p *apis.Publication) { p.Identity = "f01" })))
	_, by, _ := x.Published(one)
	require.Equal(t, 1, by)

	notified = 0
	require.NoError(t, x.Publish(two, publication(func(p *apis.Publication) { p.Identity, p.Kind = "f01", "Taste" })), "a single publisher may change the kind")
	require.Equal(t, 1, notified)
	d, err = x.Resolve(t.Context(), definitions.Lookup{Resource: flavors.GroupResource(), Identity: "f01"})
	require.NoError(t, err)
	require.Equal(t, "Taste", d.Schema.Names().Kind)
}
