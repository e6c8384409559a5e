package mcprovider_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

// TestReads checks reads in a logical cluster by keys, selectors and indexes, for all representations of objects. Other logical clusters
// have objects with the same names.
func TestReads(t *testing.T) {
	s := newServers(t, 2)
	for n := range 6 {
		name := logicalcluster.Name(fmt.Sprint("cluster", n))
		s.cluster(t, n%2, name)
		s.put(t, n%2, name, "default", "a", fmt.Sprint("first of ", n))
		s.put(t, n%2, name, "default", "b", "same")
		s.put(t, n%2, name, "other", "b", "same")
	}
	p, _ := start(t, s.options(), nil)
	content := func(obj ctrlclient.Object) []string { return []string{obj.(*corev1.ConfigMap).Data["content"]} }
	require.NoError(t, p.IndexField(t.Context(), &corev1.ConfigMap{}, "data.content", content))
	for n := range 6 {
		c, err := p.Get(t.Context(), multicluster.ClusterName(fmt.Sprint("cluster", n)))
		require.NoError(t, err)
		reader := c.GetClient()

		obj := &corev1.ConfigMap{}
		require.NoError(t, reader.Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, obj))
		require.Equal(t, fmt.Sprint("first of ", n), obj.Data["content"])
		require.Equal(t, "ConfigMap", obj.Kind)
		obj.Data["content"] = "mine" // a copy
		require.NoError(t, reader.Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, obj))
		require.Equal(t, fmt.Sprint("first of ", n), obj.Data["content"])
		require.True(t, apierrors.IsNotFound(reader.Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "c"}, obj)))

		list := func(options ...ctrlclient.ListOption) int {
			all := &corev1.ConfigMapList{}
			require.NoError(t, reader.List(t.Context(), all, options...))
			for _, item := range all.Items {
				require.Equal(t, fmt.Sprint("cluster", n), item.Annotations[logicalcluster.AnnotationKey])
				require.Equal(t, "v1", item.APIVersion)
			}
			return len(all.Items)
		}
		require.Equal(t, 3, list())
		require.Equal(t, 2, list(ctrlclient.InNamespace("default")))
		require.Equal(t, 2, list(ctrlclient.MatchingLabels{"content": "same"}))
		require.Equal(t, 1, list(ctrlclient.MatchingLabels{"content": "same"}, ctrlclient.InNamespace("other")))
		require.Equal(t, 2, list(ctrlclient.MatchingFields{"data.content": "same"}))
		require.Equal(t, 1, list(ctrlclient.MatchingFields{"data.content": "same"}, ctrlclient.InNamespace("other")))
		require.Equal(t, 1, list(ctrlclient.Limit(1)))

		meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
		require.NoError(t, reader.Get(t.Context(), ctrlclient.ObjectKey{Namespace: "other", Name: "b"}, meta))
		require.Equal(t, "same", meta.Labels["content"])
		untyped := &unstructured.UnstructuredList{}
		untyped.SetAPIVersion("v1")
		untyped.SetKind("ConfigMapList")
		require.NoError(t, c.GetCache().List(t.Context(), untyped))
		require.Len(t, untyped.Items, 3)
	}
	c, err := p.Get(t.Context(), "cluster0")
	require.NoError(t, err)
	require.ErrorContains(t, c.GetCache().List(t.Context(), &corev1.ConfigMapList{}, ctrlclient.MatchingFields{"none": "x"}), "IndexField")
	same, err := p.Get(t.Context(), "cluster0")
	require.NoError(t, err)
	require.Equal(t, c, same)
	require.True(t, c == same, "values of a logical cluster must be equal") //nolint:testifylint // multicluster-runtime uses ==

	_, err = p.Get(t.Context(), "none")
	require.ErrorIs(t, err, multicluster.ErrClusterNotFound)
	s[0].Delete(t, kinds.LogicalClusters.GroupVersionResource, "", "cluster0", "", corev1alpha1.LogicalClusterName)
	eventually(t, "a deleted logical cluster is not found", func() bool {
		_, err := p.Get(t.Context(), "cluster0")
		return errors.Is(err, multicluster.ErrClusterNotFound)
	})
}

// TestNotStarted checks that reads before the start fail immediately, and must not return NotFound.
func TestNotStarted(t *testing.T) {
	s := newServers(t, 1)
	p, err := mcprovider.New(s.options())
	require.NoError(t, err)
	_, err = p.Get(t.Context(), "cluster0")
	require.ErrorIs(t, err, client.ErrIncomplete)
	require.NotErrorIs(t, err, multicluster.ErrClusterNotFound)

	s[0].Fail(500)
	run(t, func(ctx context.Context) error { return p.Start(ctx, nil) })
	eventually(t, "missing shards are reported", func() bool { return len(p.Missing()) > 0 && p.Synced(t.Context()) == nil })
	_, err = p.Get(t.Context(), "cluster0")
	require.ErrorIs(t, err, client.ErrIncomplete)
}

// TestInformers checks handlers in two logical clusters. They must only receive events of their logical cluster, in order and first for
// existing objects, until they are removed.
func TestInformers(t *testing.T) {
	s := newServers(t, 1)
	for _, name := range []logicalcluster.Name{"one", "two"} {
		s.cluster(t, 0, name)
		s.put(t, 0, name, "default", "a", "first")
	}
	p, _ := start(t, s.options(), nil)
	var mu sync.Mutex
	events := map[string][]string{}
	note := func(cluster, what string, obj any) {
		mu.Lock()
		defer mu.Unlock()
		if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj, what = last.Obj, what+" unseen"
		}
		cm := obj.(*corev1.ConfigMap)
		events[cluster] = append(events[cluster], fmt.Sprintf("%s %s %s of %s", what, cm.Name, cm.Data["content"], logicalcluster.From(cm)))
	}
	waitFor := func(cluster string, what ...string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			mu.Lock()
			defer mu.Unlock()
			require.Equal(c, what, events[cluster])
		}, testTimeout, tick)
	}
	remove := map[string]func() error{}
	for _, name := range []string{"one", "two"} {
		c, err := p.Get(t.Context(), multicluster.ClusterName(name))
		require.NoError(t, err)
		informer, err := c.GetCache().GetInformer(t.Context(), &corev1.ConfigMap{})
		require.NoError(t, err)
		r, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(obj any, initial bool) {
				if initial {
					note(name, "initial", obj)
				} else {
					note(name, "add", obj)
				}
			},
			UpdateFunc: func(_, obj any) { note(name, "update", obj) },
			DeleteFunc: func(obj any) { note(name, "delete", obj) },
		})
		require.NoError(t, err)
		select {
		case <-r.HasSyncedChecker().Done():
		case <-time.After(testTimeout):
			t.Fatal("the handler has not synced")
		}
		require.True(t, r.HasSynced())
		waitFor(name, "initial a first of "+name)
		remove[name] = func() error { return informer.RemoveEventHandler(r) }
	}
	s.put(t, 0, "one", "default", "b", "second")
	s.put(t, 0, "one", "default", "a", "third")
	s[0].Delete(t, kinds.ConfigMaps.GroupVersionResource, "", "one", "default", "b")
	waitFor("one", "initial a first of one", "add b second of one", "update a third of one", "delete b second of one")
	require.NoError(t, remove["one"]())
	s.put(t, 0, "one", "default", "a", "unobserved")
	s[0].Break()
	s.put(t, 0, "two", "default", "c", "fourth")
	waitFor("two", "initial a first of two", "add c fourth of two")
	waitFor("one", "initial a first of one", "add b second of one", "update a third of one", "delete b second of one")
}

// TestSource checks a controller with a Source. It must receive events of all logical clusters, also if an object is read before its
// logical cluster.
func TestSource(t *testing.T) {
	s := newServers(t, 2)
	for n := range 20 {
		name := logicalcluster.Name(fmt.Sprint("cluster", n))
		s.cluster(t, n%2, name)
		s.put(t, n%2, name, "default", "a", "first")
	}
	s.put(t, 0, "early", "default", "a", "first")
	options := s.options()
	options.NoEngage = true
	p, err := mcprovider.New(options)
	require.NoError(t, err)
	m := newManager(t, options.Config, p)
	var read seen
	ignored := predicate.NewPredicateFuncs(func(obj ctrlclient.Object) bool { return obj.GetName() != "ignored" })
	require.NoError(t, mcbuilder.ControllerManagedBy(m).WithOptions(unnamed).Named("reader").
		WatchesRawSource(p.Source(&corev1.ConfigMap{}, mcprovider.WithPredicates(ignored))).Complete(read.reader(m)))
	run(t, m.Start)
	eventually(t, "all objects are read", func() bool { return len(read.clusters()) == 20 })
	s.put(t, 1, "cluster1", "default", "ignored", "x")
	s.put(t, 1, "cluster1", "default", "a", "second")
	s.cluster(t, 0, "early")
	eventually(t, "a change, and a logical cluster that is created after its object", func() bool {
		return read.get(requestOf("cluster1", "default", "a")) == "second" && read.get(requestOf("early", "default", "a")) == "first"
	})
	require.Empty(t, read.get(requestOf("cluster1", "default", "ignored")))
}

// TestEngage checks a controller that is built with For.
func TestEngage(t *testing.T) {
	s := newServers(t, 2)
	for n := range 20 {
		name := logicalcluster.Name(fmt.Sprint("cluster", n))
		s.cluster(t, n%2, name)
		s.put(t, n%2, name, "default", "a", "first")
	}
	p, err := mcprovider.New(s.options())
	require.NoError(t, err)
	m := newManager(t, s[0].ClientConfig(), p)
	var read seen
	require.NoError(t, mcbuilder.ControllerManagedBy(m).WithOptions(unnamed).For(&corev1.ConfigMap{}).Complete(read.reader(m)))
	run(t, m.Start)
	eventually(t, "all objects are read", func() bool { return len(read.clusters()) == 20 })
	s.put(t, 1, "cluster1", "default", "a", "second")
	s.cluster(t, 0, "later")
	s.put(t, 0, "later", "default", "a", "first")
	eventually(t, "a change, and a new logical cluster", func() bool {
		return read.get(requestOf("cluster1", "default", "a")) == "second" && read.get(requestOf("later", "default", "a")) == "first"
	})
}

// awares records engaged logical clusters.
type awares struct {
	mu      sync.Mutex
	engaged map[multicluster.ClusterName]bool
	refuse  int
}

func (a *awares) Engage(ctx context.Context, name multicluster.ClusterName, _ cluster.Cluster) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse > 0 {
		a.refuse--
		return errors.New("temporary error")
	}
	a.engaged[name] = true
	context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.engaged, name)
	})
	return nil
}

func (a *awares) names() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.engaged {
		names = append(names, name.String())
	}
	return names
}

// TestEngagement checks that only existing and selected logical clusters are engaged, and that failures are retried.
func TestEngagement(t *testing.T) {
	s := newServers(t, 1)
	for _, name := range []logicalcluster.Name{"one", "two", "out"} {
		s.cluster(t, 0, name)
	}
	options := s.options()
	options.Select = func(obj *corev1alpha1.LogicalCluster) bool { return logicalcluster.From(obj) != "out" }
	a := &awares{engaged: map[multicluster.ClusterName]bool{}, refuse: 1}
	p, _ := start(t, options, a)
	are := func(names ...string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) { require.ElementsMatch(c, names, a.names()) }, testTimeout, tick)
	}
	are("one", "two")
	_, err := p.Get(t.Context(), "out")
	require.ErrorIs(t, err, multicluster.ErrClusterNotFound)
	s.cluster(t, 0, "three")
	are("one", "two", "three")
	s[0].Delete(t, kinds.LogicalClusters.GroupVersionResource, "", "two", "", corev1alpha1.LogicalClusterName)
	are("one", "three")
}

// replica is a replica of a controller.
type replica struct {
	*seen

	provider *mcprovider.Provider
	stop     func()
}

// quick returns the configuration of a member of a ring with short intervals. The duration of Leases is the
// default, because a member must renew them on a busy machine, too.
func quick(name string, leases client.Scope) ring.Config {
	return ring.Config{
		Name: "greeter", ID: name, Leases: leases, Namespace: "default", Key: client.ByCluster,
		RenewInterval: 300 * time.Millisecond, GracePeriod: time.Second, RebalanceDelay: 50 * time.Millisecond,
	}
}

func startReplica(t *testing.T, name string, options mcprovider.Options, leases client.Scope, working *sync.Map) *replica {
	t.Helper()
	member, err := ring.New(quick(name, leases))
	require.NoError(t, err)
	options.Ring = member
	p, err := mcprovider.New(options)
	require.NoError(t, err)
	m := newManager(t, options.Config, p)
	r := &replica{seen: &seen{}, provider: p}
	controller := mcbuilder.ControllerManagedBy(m).WithOptions(unnamed).Named("greeter")
	if options.NoEngage {
		controller = controller.WatchesRawSource(p.Source(&corev1.ConfigMap{}))
	} else {
		controller = controller.For(&corev1.ConfigMap{})
	}
	require.NoError(t, controller.Complete(p.Gate(exclusive(t, name, working, r.seen.reader(m)))))
	r.stop = run(t, func(ctx context.Context) error { return member.Run(ctx, m.Start) })
	return r
}

// sourcesAndEngaged runs a test for both kinds of controllers.
func sourcesAndEngaged(t *testing.T, test func(t *testing.T, noEngage bool)) {
	t.Helper()
	t.Run("sources", func(t *testing.T) { test(t, true) })
	t.Run("engaged", func(t *testing.T) { test(t, false) })
}

// TestRing starts and stops replicas. Each must only read and reconcile its own logical clusters, and reconcile them again after they have
// been reassigned.
func TestRing(t *testing.T) {
	t.Parallel()
	sourcesAndEngaged(t, func(t *testing.T, noEngage bool) {
		t.Parallel()
		s := newServers(t, 1)
		var names []logicalcluster.Name
		for n := range 40 {
			name := logicalcluster.Name(fmt.Sprint("cluster", n))
			names = append(names, name)
			s.cluster(t, 0, name)
			s.put(t, 0, name, "default", "a", "first")
		}
		options := s.options()
		options.Config, options.NoEngage = s.describing(t), noEngage
		testRing(t, options, names, func(name logicalcluster.Name, content string) { s.put(t, 0, name, "default", "a", content) })
	})
}
