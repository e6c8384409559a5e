package replication

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

const testTimeout = time.Minute

// shown runs Replicas with the objects of a shard and a cache server.
type shown struct {
	*Replicas

	t           *testing.T
	here, cache *clienttest.Server
	clock       *clocktesting.FakeClock
	// consumed is the export with consumers.
	consumed *atomic.Pointer[client.Key]
	// consumersOf sets the export with consumers; last is the one that changed.
	consumersOf func(now *client.Key, last client.Key)
}

var clusterSlices = client.DefineResource[apis.ClusterCachedResourceEndpointSlice, apis.ClusterCachedResourceEndpointSliceList](cachev1alpha1.SchemeGroupVersion, "clustercachedresourceendpointslices")

func start(t *testing.T) shown { return startKeeping(t, nil) }

// startKeeping is start with snapshots of a former process.
func startKeeping(t *testing.T, kept *snapshot.Directory) shown {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apisv1alpha2.AddToScheme, cachev1alpha1.AddToScheme} {
		require.NoError(t, add(types))
	}
	s := shown{t: t, here: clienttest.New(t, types), cache: clienttest.New(t, types), clock: clocktesting.NewFakeClock(time.Now()), consumed: &atomic.Pointer[client.Key]{}}
	factory := func(of *clienttest.Server) *client.Factory {
		f, err := client.NewFactory(of.ClientConfig())
		require.NoError(t, err)
		t.Cleanup(f.CloseIdleConnections)
		return f
	}
	own := factory(s.here).Wildcard()
	config := Config{
		Cache: factory(s.cache), Clock: s.clock, Kept: kept,
		Exports:       replicas.NewDual(kinds.APIExports.Informer(own, client.InformerOptions[*apisv1alpha2.APIExport]{}), nil, replicas.DualOptions{}),
		Slices:        replicas.NewDual(kinds.CachedResourceEndpointSlices.Informer(own, client.InformerOptions[*cachev1alpha1.CachedResourceEndpointSlice]{}), nil, replicas.DualOptions{}),
		ClusterSlices: replicas.NewDual(clusterSlices.Informer(own, client.InformerOptions[*apis.ClusterCachedResourceEndpointSlice]{}), nil, replicas.DualOptions{}),
		Cached:        replicas.NewDual(kinds.CachedResources.Informer(own, client.InformerOptions[*cachev1alpha1.CachedResource]{}), nil, replicas.DualOptions{}),
		ClusterCached: replicas.NewDual(kinds.ClusterCachedResources.Informer(own, client.InformerOptions[*cachev1alpha1.CachedResource]{}), nil, replicas.DualOptions{}),
		Consumed: func(export client.Key) bool {
			now := s.consumed.Load()
			return now != nil && *now == export
		},
	}
	followed := make(chan func(client.Key), 1)
	config.FollowConsumers = func(f func(client.Key)) func() {
		followed <- f
		return func() {}
	}
	s.Replicas = NewReplicationVirtualWorkspace(config)
	group := &client.Group{}
	group.Add(config.Exports, config.Slices, config.ClusterSlices, config.Cached, config.ClusterCached)
	for _, run := range []func(context.Context) error{group.Run, s.Run} {
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- run(ctx) }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-ended)
		})
	}
	consumers := <-followed
	s.consumersOf = func(export *client.Key, last client.Key) {
		s.consumed.Store(export)
		consumers(last)
	}
	return s
}

// offers makes a logical cluster offer a resource of which the cache server has one object.
func (s shown) offers(cluster logicalcluster.Name, name string) offering {
	s.t.Helper()
	meta := metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}}
	resource := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: name}
	s.here.Put(s.t, kinds.CachedResources.GroupVersionResource, &cachev1alpha1.CachedResource{
		ObjectMeta: meta,
		Spec:       cachev1alpha1.CachedResourceSpec{GroupVersionResource: cachev1alpha1.GroupVersionResource(resource)},
		Status:     cachev1alpha1.CachedResourceStatus{IdentityHash: "id"},
	})
	s.slice(cluster, name, name)
	o := s.export(cluster, name, name, "CachedResourceEndpointSlice", name, "id")
	s.replica(cluster, name, "of-"+name)
	return o
}

func (s shown) slice(cluster logicalcluster.Name, name, cached string) {
	s.t.Helper()
	s.here.Put(s.t, kinds.CachedResourceEndpointSlices.GroupVersionResource, &cachev1alpha1.CachedResourceEndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}},
		Spec:       cachev1alpha1.CachedResourceEndpointSliceSpec{CachedResource: cachev1alpha1.CachedResourceReference{Name: cached}},
	})
}

func (s shown) export(cluster logicalcluster.Name, name, resource, kind, slice, identity string) offering {
	s.t.Helper()
	group := cachev1alpha1.SchemeGroupVersion.Group
	s.here.Put(s.t, kinds.APIExports.GroupVersionResource, &apisv1alpha2.APIExport{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}},
		Spec: apisv1alpha2.APIExportSpec{Resources: []apisv1alpha2.ResourceSchema{{
			Group: "example.org", Name: resource, Schema: "v1." + resource, Storage: apisv1alpha2.ResourceSchemaStorage{Virtual: &apisv1alpha2.ResourceSchemaStorageVirtual{
				Reference: corev1.TypedLocalObjectReference{APIGroup: &group, Kind: kind, Name: slice}, IdentityHash: identity,
			}},
		}}},
	})
	return offering{client.Key{Cluster: cluster, Name: name}, schema.GroupResource{Group: "example.org", Resource: resource}}
}

func (s shown) replica(cluster logicalcluster.Name, resource, name string) {
	s.t.Helper()
	s.replicaOf("other", cluster, resource, name)
}

func (s shown) replicaOf(shard string, cluster logicalcluster.Name, resource, name string) {
	s.t.Helper()
	replica := &unstructured.Unstructured{}
	replica.SetAPIVersion("example.org/v1")
	replica.SetKind("Flavor")
	replica.SetName(name)
	replica.SetAnnotations(map[string]string{logicalcluster.AnnotationKey: cluster.String(), request.ShardAnnotation: shard})
	s.cache.Put(s.t, schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: resource + ":id"}, replica)
}

func asIs(o offering) board.Content {
	return board.Content{
		Resource: o.resource,
		Show:     func(obj client.Object, _ string) client.Object { return obj },
		Fields:   func(client.Object) fields.Set { return nil },
		List: func(_ metav1.ListMeta, shown []client.Object) runtime.Object {
			all := &metav1.Status{}
			for _, obj := range shown {
				all.Message += obj.GetName()
			}
			return all
		},
	}
}

// requests requests an offering.
func (s shown) requests(o offering) (string, error) {
	of, err := s.offered(o)
	if err != nil {
		return "", err
	}
	b, err := s.boardOf(s.t.Context(), of, o)
	if err != nil {
		return "", err
	}
	list, err := b.Read(asIs(o)).List(s.t.Context(), &metainternalversion.ListOptions{})
	if err != nil {
		return "", err
	}
	return list.(*metav1.Status).Message, nil
}

// mustServe requests an offering, and checks the objects.
func (s shown) mustServe(o offering, names string) {
	s.t.Helper()
	found, err := s.requests(o)
	require.NoError(s.t, err)
	require.Equal(s.t, names, found)
}

// waitFollowing waits until a number of offerings are followed.
func (s shown) waitFollowing(n int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.following() == n }, testTimeout, time.Millisecond, "%d", n)
}

// waitSynced waits until the shard has the objects of an offering.
func (s shown) waitSynced(all ...offering) {
	s.t.Helper()
	var failed error
	require.Eventually(s.t, func() bool {
		for _, o := range all {
			if _, failed = s.offered(o); failed != nil {
				return false
			}
		}
		return true
	}, testTimeout, time.Millisecond, "the offering is not loaded: %v", &failed)
}

func (s shown) following() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.followers)
}

// runs waits until Run has started.
func (s shown) runs() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.running != nil && s.clock.HasWaiters()
	}, testTimeout, time.Millisecond)
}

// TestRequestedOffering: an offering without consumers is followed from the first request until there has been none for two hours.
func TestRequestedOffering(t *testing.T) {
	s := start(t)
	one, two := s.offers("aaaa", "ones"), s.offers("bbbb", "twos")
	s.waitSynced(one, two)
	s.runs()
	require.Zero(t, s.following(), "offerings must not be followed before a request")
	for name, o := range map[string]offering{"of-ones": one, "of-twos": two} {
		s.mustServe(o, name)
	}
	require.Equal(t, 2, s.following())

	s.clock.Step(keepRequested - time.Second)
	s.mustServe(one, "of-ones")
	s.clock.Step(checkInterval)
	s.waitFollowing(1) // the second one was not requested
	s.mu.Lock()
	for _, f := range s.followers {
		assert.Equal(t, one, f.as)
	}
	s.mu.Unlock()
	s.mustServe(two, "of-twos") // it is followed anew

	// Removed offerings are not followed.
	s.here.Delete(t, kinds.APIExports.GroupVersionResource, "", "aaaa", "", "ones")
	s.waitFollowing(1)
	_, err := s.requests(one)
	require.ErrorContains(t, err, "does not exist")
}

// TestConsumed: an offering with consumers is followed without requests, and does not count against the limit.
func TestConsumed(t *testing.T) {
	s := start(t)
	one := s.offers("aaaa", "ones")
	s.waitSynced(one)
	s.consumersOf(&one.export, one.export)
	s.waitFollowing(1)
	s.mustServe(one, "of-ones")
	s.clock.Step(keepRequested + checkInterval)
	two := s.offers("aaaa", "twos") // triggers followSources
	s.waitSynced(two)
	s.mustServe(two, "of-twos")
	require.Equal(t, 2, s.following())
	s.consumersOf(nil, one.export)
	s.waitFollowing(1)
}

// TestReplicasOfSeveralShards: an object exists while any shard has a replica of it.
func TestReplicasOfSeveralShards(t *testing.T) {
	s := start(t)
	one := s.offers("aaaa", "ones")
	s.waitSynced(one)
	s.runs()
	w := s.watchOf(one)
	event := func(kind watch.EventType, name, shard string) {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			obj, ok := e.Object.(client.Object)
			require.True(t, ok)
			require.Equal(t, []any{kind, name, shard}, []any{e.Type, obj.GetName(), obj.GetAnnotations()[request.ShardAnnotation]})
		case <-time.After(testTimeout):
			require.FailNow(t, "no event", "%s %s of %s", kind, name, shard)
		}
	}
	resource := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "ones:id"}
	event(watch.Added, "of-ones", "other")
	s.replicaOf("another", "aaaa", "ones", "of-ones")
	event(watch.Modified, "of-ones", "another")
	s.cache.Delete(t, resource, "another", "aaaa", "", "of-ones")
	event(watch.Modified, "of-ones", "other")
	s.replicaOf("another", "aaaa", "ones", "of-ones")
	event(watch.Modified, "of-ones", "another")
	// The copy that is not returned is deleted first.
	s.cache.Delete(t, resource, "other", "aaaa", "", "of-ones")
	s.cache.Delete(t, resource, "another", "aaaa", "", "of-ones")
	event(watch.Deleted, "of-ones", "another")
}

// TestFirstRequestWaits: the first request gets 503 with a delay if the cache server does not respond soon.
func TestFirstRequestWaits(t *testing.T) {
	s := start(t)
	one := s.offers("aaaa", "ones")
	s.waitSynced(one)
	s.runs()
	s.cache.Fail(503)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a request that does not wait
	of, err := s.offered(one)
	require.NoError(t, err)
	_, err = s.boardOf(ctx, of, one)
	require.NoError(t, err)
	s.clock.Step(requestedTimeout)
	_, err = s.requests(one)
	require.True(t, apierrors.IsServiceUnavailable(err), err)
	seconds, ok := apierrors.SuggestsClientDelay(err)
	require.True(t, ok)
	require.Equal(t, 1, seconds)
	s.cache.Fail(0)
	var found string
	failed := []error{nil}
	require.Eventually(t, func() bool {
		found, failed[0] = s.requests(one)
		return failed[0] == nil && found == "of-ones"
	}, testTimeout, time.Millisecond, "the offering is not served: %v", &failed)
}

// TestUnknownOffer: requests get 503 with a delay until the shard has the objects that determine the source.
func TestUnknownOffer(t *testing.T) {
	s := start(t)
	_, err := objects{offering{client.Key{Cluster: "aaaa", Name: "unknown"}, schema.GroupResource{Group: "example.org", Resource: "unknown"}}, s.Replicas}.In(t.Context(), request.Cluster{Name: "aaaa"}, nil, "v1")
	require.True(t, apierrors.IsServiceUnavailable(err), err)
	_, later := apierrors.SuggestsClientDelay(err)
	require.True(t, later, err)

	options := client.InformerOptions[*cachev1alpha1.CachedResourceEndpointSlice]{}
	unread := kinds.CachedResourceEndpointSlices.Informer(s.config.Cache.Wildcard(), options)
	s.config.Slices = replicas.NewDual(unread, nil, replicas.DualOptions{})
	ctx := request.WithScope(t.Context(), request.Scope{VirtualWorkspace: &request.VirtualWorkspace{Name: "unknown"}})
	v := &VirtualWorkspaces{Replicas: &Replicas{config: s.config}}
	_, needs := v.Needs(ctx, authorizer.AttributesRecord{})
	_, _, permits := v.Permits(ctx, nil)
	_, serves := v.definition(ctx, &genericapirequest.RequestInfo{})
	for _, err := range []error{needs, permits, serves} {
		require.ErrorIs(t, err, client.ErrIncomplete)
	}
}

// TestLimitsOfRequestedOfferings: the number of offerings without consumers is limited, for one logical cluster and in total.
func TestLimitsOfRequestedOfferings(t *testing.T) {
	s := start(t)
	var all []offering
	for cluster := range maxRequested/maxRequestedPerCluster + 1 {
		for n := range maxRequestedPerCluster {
			all = append(all, s.offers(logicalcluster.Name(fmt.Sprint("c", cluster)), fmt.Sprint("r", n)))
		}
	}
	more := s.offers("c0", "more")
	s.waitSynced(append(all, more)...)
	s.runs()
	refused := func(o offering, why string) {
		t.Helper()
		_, err := s.requests(o)
		require.True(t, apierrors.IsTooManyRequests(err), err)
		require.ErrorContains(t, err, why)
		_, ok := apierrors.SuggestsClientDelay(err)
		require.True(t, ok)
	}
	for _, o := range all[:maxRequestedPerCluster] {
		s.mustServe(o, "of-"+o.resource.Resource)
	}
	refused(more, "16 other resources of the logical cluster c0")
	for _, o := range all[maxRequestedPerCluster:maxRequested] {
		s.mustServe(o, "of-"+o.resource.Resource) // another logical cluster has capacity
	}
	refused(all[maxRequested], "128 other resources")
	require.Equal(t, maxRequested, s.following())

	// Idle offerings free capacity.
	s.clock.Step(keepRequested)
	s.waitFollowing(0)
	for _, o := range []offering{more, all[maxRequested]} {
		s.mustServe(o, "of-"+o.resource.Resource)
	}
}

// TestSnapshots: without the cache server, a new process serves the replicas of a former one, unless they are too old, and
// deletes those without consumers.
func TestSnapshots(t *testing.T) {
	kept := &snapshot.Directory{Path: filepath.Join(t.TempDir(), "cached"), Config: snapshot.Config{Server: "one", MaxAge: time.Hour}}
	files := func() []string {
		all, err := filepath.Glob(filepath.Join(kept.Path, "*.json"))
		require.NoError(t, err)
		return all
	}
	consumed := func(t *testing.T, s shown) offering {
		t.Helper()
		one := s.offers("aaaa", "ones")
		s.waitSynced(one)
		s.consumersOf(&one.export, one.export)
		s.waitFollowing(1)
		return one
	}
	unreachable := func(t *testing.T) (shown, offering) {
		t.Helper()
		s := startKeeping(t, kept)
		s.cache.Fail(503)
		return s, consumed(t, s)
	}
	t.Run("before", func(t *testing.T) {
		s := startKeeping(t, kept)
		s.mustServe(consumed(t, s), "of-ones")
	})
	require.Len(t, files(), 1)
	t.Run("alone", func(t *testing.T) {
		s, one := unreachable(t)
		s.mustServe(one, "of-ones")
	})
	require.Len(t, files(), 1, "the snapshot must be kept while the cache server is unreachable")
	t.Run("without consumers", func(t *testing.T) {
		s, one := unreachable(t)
		s.consumersOf(nil, one.export)
		require.Eventually(t, func() bool { return len(files()) == 0 }, testTimeout, time.Millisecond)
	})
	old := filepath.Join(kept.Path, "old.json")
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
	t.Run("later", func(t *testing.T) {
		startKeeping(t, kept).runs()
		require.Empty(t, files())
	})
}
