package cachedresource

import (
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// known simulates Publications.
type known struct {
	Publications

	all map[apis.Publisher]bool
}

func (k known) Publish(publisher apis.Publisher, _ *apis.Publication) error {
	k.all[publisher] = true
	return nil
}

func (k known) Published(publisher apis.Publisher) (schema.GroupVersionResource, int, bool) {
	return schema.GroupVersionResource{}, 1, k.all[publisher]
}

type ensured struct {
	Table

	all []schema.GroupVersionResource
}

func (e *ensured) Ensure(resource schema.GroupVersionResource) error {
	e.all = append(e.all, resource)
	return nil
}

// cachedOf returns a cached resource for flavors that was created after a number of seconds.
func cachedOf(cluster logicalcluster.Name, name string, after int, change ...func(*cachev1alpha1.CachedResource)) *cachev1alpha1.CachedResource {
	cached := &cachev1alpha1.CachedResource{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()},
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, after, 0, time.UTC)),
	}}
	cached.Spec.GroupVersionResource = cachev1alpha1.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "flavors"}
	cached.Status.IdentityHash = "f00"
	for _, c := range change {
		c(cached)
	}
	return cached
}

func hasBegun(cached *cachev1alpha1.CachedResource) { annotateKind(cached, "Flavor") }

func withReplicas(cached *cachev1alpha1.CachedResource) {
	annotateKind(cached, "Flavor")
	cached.Status.ResourceCounts = &cachev1alpha1.ResourceCount{Local: 2, Cache: 2}
}

func withIdentity(identity string) func(*cachev1alpha1.CachedResource) {
	return func(cached *cachev1alpha1.CachedResource) { cached.Status.IdentityHash = identity }
}

func inVersion(version string) func(*cachev1alpha1.CachedResource) {
	return func(cached *cachev1alpha1.CachedResource) { cached.Spec.Version = version }
}

func conflicting(t *testing.T, published map[apis.Publisher]bool, all, cluster []*cachev1alpha1.CachedResource) (of, ofCluster *controller) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, cachev1alpha1.AddToScheme(scheme))
	server := clienttest.New(t, scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	config := Config{
		Publications: known{all: published}, Store: &stored{}, Table: &ensured{}, Local: factory, Cache: factory,
	}
	group := &client.Group{}
	for i, resource := range []client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]{kinds.CachedResources, kinds.ClusterCachedResources} {
		for _, one := range [][]*cachev1alpha1.CachedResource{all, cluster}[i] {
			one = one.DeepCopy()
			one.SetGroupVersionKind(cachev1alpha1.SchemeGroupVersion.WithKind([]string{"CachedResource", "ClusterCachedResource"}[i]))
			server.Put(t, resource.GroupVersionResource, one)
		}
		informer := resource.Informer(factory.Wildcard(), client.InformerOptions[*cachev1alpha1.CachedResource]{})
		group.Add(informer)
		config.All = append(config.All, informer)
	}
	ended := make(chan error, 1)
	go func() { ended <- group.Run(t.Context()) }()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	for _, informer := range config.All {
		<-informer.Synced()
	}
	controllers := [2]*controller{}
	for i, resource := range []client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]{kinds.CachedResources, kinds.ClusterCachedResources} {
		config.Resource, config.Objects = resource, config.All[i]
		controllers[i] = &controller{Config: config, watched: newWatched()}
	}
	return controllers[0], controllers[1]
}

// TestPrecedence: exactly one of several cached resources for the same resource takes precedence: one that may have replicas, or
// the oldest.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	order := []*cachev1alpha1.CachedResource{
		cachedOf("c", "d", 1, hasBegun), cachedOf("c", "c", 2, withReplicas), cachedOf("c", "a", 0), cachedOf("c", "b", 0), cachedOf("c", "e", 1, hasBegun, withIdentity("")),
	}
	for i, a := range order {
		for j, b := range order {
			require.Equal(t, i < j, takesPrecedence(a, b), "%s before %s", a.Name, b.Name)
		}
	}
}

// TestConflictDetection: a cached resource detects another one of either kind in its logical cluster that takes precedence, and does
// not delete shared replicas.
func TestConflictDetection(t *testing.T) {
	t.Parallel()
	winner := cachedOf("c", "x", 5, withReplicas)
	loser, second := cachedOf("c", "x", 0, withIdentity("f00")), cachedOf("c", "y", 1, withIdentity("f01"))
	other, elsewhere := cachedOf("c", "z", 0, inVersion("v2"), withReplicas), cachedOf("d", "x", 9)
	of, ofCluster := conflicting(t, nil, []*cachev1alpha1.CachedResource{winner, second, other, elsewhere}, []*cachev1alpha1.CachedResource{loser})
	by := apis.Publisher{Resource: apis.CachedResources, Cluster: "c", Name: "x"}
	require.Equal(t, by, ofCluster.conflict(loser).By)
	require.Equal(t, by, of.conflict(second).By)
	for _, none := range []*cachev1alpha1.CachedResource{winner, other, elsewhere} {
		require.Nil(t, of.conflict(none), none.Name)
	}
	require.True(t, ofCluster.sharesReplicas(loser))
	require.False(t, of.sharesReplicas(second), "another identity has separate replicas")
	require.False(t, of.sharesReplicas(winner), "the winner must not share its replicas")
}

// TestIncomplete: after a start, nothing changes under an identity until all cached resources with replicas have been
// published. Others are not waited for.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	deleting := func(cached *cachev1alpha1.CachedResource) {
		cached.DeletionTimestamp, cached.Finalizers = new(metav1.Now()), []string{cachev1alpha1.CachedResourceFinalizer}
	}
	withCondition := func(is bool, condition conditionsv1alpha1.ConditionType, reason string) func(*cachev1alpha1.CachedResource) {
		return func(cached *cachev1alpha1.CachedResource) {
			if is {
				conditions.MarkTrue(cached, condition)
			} else {
				conditions.MarkFalse(cached, condition, reason, conditionsv1alpha1.ConditionSeverityInfo, "")
			}
		}
	}
	published := map[apis.Publisher]bool{}
	resource := schema.GroupResource{Group: "g.io", Resource: "flavors:f00"}
	of, ofCluster := conflicting(t, published, []*cachev1alpha1.CachedResource{
		cachedOf("c", "had", 0, withReplicas),
		cachedOf("c", "other", 0, withReplicas, withIdentity("f01")),
		cachedOf("d", "new", 0),
		cachedOf("e", "empty", 0, hasBegun),
		cachedOf("f", "deleting", 0, withReplicas, deleting),
		cachedOf("g", "invalid", 0, withReplicas, withCondition(false, cachev1alpha1.CachedResourceValid, cachev1alpha1.CachedResourceValidNoResources)),
		cachedOf("h", "already", 0, withReplicas, withCondition(false, cachev1alpha1.ReplicationStarted, reasonAlreadyCached)),
	}, []*cachev1alpha1.CachedResource{
		cachedOf("i", "started", 0, hasBegun, withCondition(true, cachev1alpha1.ReplicationStarted, "")),
		cachedOf("j", "waiting", 0, withReplicas, withCondition(false, cachev1alpha1.ReplicationStarted, reasonWaiting), inVersion("v2")),
	})
	initialPublishers := []apis.Publisher{
		{Resource: apis.ClusterCachedResources, Cluster: "i", Name: "started"}, {Resource: apis.CachedResources, Cluster: "c", Name: "had"}, {Resource: apis.ClusterCachedResources, Cluster: "j", Name: "waiting"},
	}
	for _, c := range []*controller{of, ofCluster} {
		clear(published)
		require.False(t, c.dropPublished(resource), "no publishers are awaited before the start")
		_, err := c.remember(t.Context(), nil)
		require.NoError(t, err)
		require.ElementsMatch(t, initialPublishers, c.initialPublishers.of[resource])
		require.Len(t, c.initialPublishers.of, 2)
		for _, publisher := range initialPublishers {
			require.True(t, c.dropPublished(resource), publisher)
			published[publisher] = true
		}
		require.False(t, c.dropPublished(resource))
		clear(published)
		require.False(t, c.dropPublished(resource), "publishers that are added later must not be awaited")
		require.True(t, c.dropPublished(schema.GroupResource{Group: "g.io", Resource: "flavors:f01"}))
	}
}

// TestNoDeletionsBeforeSync: after a start, the first published cached resource of an identity does not cause the
// deletion of other replicas. New ones wait.
func TestNoDeletionsBeforeSync(t *testing.T) {
	t.Parallel()
	one, two, late := cachedOf("c", "one", 0, withReplicas), cachedOf("d", "two", 0, withReplicas), cachedOf("e", "late", 0)
	published := map[apis.Publisher]bool{}
	of, _ := conflicting(t, published, []*cachev1alpha1.CachedResource{one, two, late}, nil)
	_, err := of.remember(t.Context(), nil)
	require.NoError(t, err)
	table := of.Table.(*ensured) //nolint:forcetypeassert // as conflicting made it
	replicate := func(object *cachev1alpha1.CachedResource) *cachev1alpha1.CachedResource {
		t.Helper()
		object = object.DeepCopy()
		_, err := of.replicate(t.Context(), object, Served{Kind: "Flavor"})
		require.NoError(t, err)
		return object
	}
	replicate(late)
	require.Empty(t, published)
	require.Equal(t, one.Status, replicate(one).Status, "the status must not change while other publishers are unknown")
	require.Len(t, published, 1)
	require.Empty(t, table.all)
	require.Equal(t, reasonWaiting, conditions.GetReason(replicate(late), cachev1alpha1.ReplicationStarted))
	deleted, err := of.empty(t.Context(), two)
	require.NoError(t, err)
	require.False(t, deleted, "replicas must not be deleted while other publishers are unknown")
	require.Empty(t, table.all)

	replicate(two)
	replicate(one)
	replicate(late)
	require.Len(t, published, 3)
	flavors := schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "flavors:f00"}
	require.Equal(t, []schema.GroupVersionResource{flavors, flavors, flavors}, table.all)
}
