package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

func running(informers ...client.Runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	group := &client.Group{}
	group.Add(informers...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := group.Run(ctx); err != nil {
			fmt.Println(err)
		}
	}()
	if err := group.WaitForSync(ctx); err != nil {
		fmt.Println(err)
	}
	return func() {
		cancel()
		<-ended
	}
}

func withServer(f func(t testing.TB, server *clienttest.Server, factory *client.Factory)) {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		server, factory := newServer(t)
		for _, cluster := range []logicalcluster.Name{"one", "two"} {
			server.Put(t, kinds.ConfigMaps.GroupVersionResource, configMap(cluster, "default", "settings"))
		}
		f(t, server, factory)
	})
}

// All clients of a server share one transport.
func ExampleNewFactory() {
	withServer(func(_ testing.TB, server *clienttest.Server, _ *client.Factory) {
		var options []client.FactoryOption
		factory, err := client.NewFactory(server.ClientConfig(), options...)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer factory.CloseIdleConnections()
		of := func(f *client.Factory) []client.Scope {
			return []client.Scope{f.Cluster(logicalcluster.NewPath("root:team")), f.Wildcard()}
		}
		fmt.Println(of(factory))

		configMaps := kinds.ConfigMaps.In(factory.Wildcard())
		list, err := configMaps.List(context.Background(), metav1.ListOptions{})
		fmt.Println(len(list.Items), err)
	})
	// Output:
	// [root:team *]
	// 2 <nil>
}

func ExampleWithMetrics() {
	withServer(func(_ testing.TB, server *clienttest.Server, _ *client.Factory) {
		registry := prometheus.NewRegistry()
		factory, err := client.NewFactory(server.ClientConfig(), client.WithMetrics(registry))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer factory.CloseIdleConnections()
		defer running(kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{}))()
		families, err := registry.Gather()
		for _, family := range families {
			if family.GetName() == "shardplane_client_informer_objects" {
				fmt.Println(family.GetMetric()[0].GetGauge().GetValue(), err)
			}
		}
	})
	// Output: 2 <nil>
}

// Resources can be defined without linking other kinds.
func ExampleDefineResource() {
	gv := schema.GroupVersion{Group: "example.io", Version: "v1"}
	widgets := client.DefineResource[Widget, WidgetList](gv, "widgets")
	fmt.Println(widgets.GroupResource())

	// A built-in kind has a protobuf encoding. A bound resource needs its identity in requests for all logical
	// clusters.
	options := []client.ResourceOption{client.WithProtobuf()}
	fmt.Println(client.DefineResource[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "secrets", options...).GroupResource())
	const identity = "5b9f" // from the status of the APIExport
	fmt.Println(client.DefineResource[Widget, WidgetList](gv, "widgets:"+identity).GroupResource())
	// Output:
	// widgets.example.io
	// secrets
	// widgets:5b9f.example.io
}

// An informer separates objects of one name in different logical clusters.
func ExampleInformer() {
	withServer(func(t testing.TB, server *clienttest.Server, factory *client.Factory) {
		t.Helper()
		var byName client.IndexFunc[*corev1.ConfigMap] = func(cm *corev1.ConfigMap) []string { return []string{cm.Name} }
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{
			Indexers: map[string]client.IndexFunc[*corev1.ConfigMap]{"by-name": byName},
		})
		deleted := make(chan string)
		buffered := []client.HandlerOption{client.Buffered()}
		registration := informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{
			OnDelete: func(last *corev1.ConfigMap, _ bool) { deleted <- client.KeyOf(last).String() },
		}, buffered...)

		ctx, cancel := context.WithCancel(context.Background())
		var group client.Group
		group.Add([]client.Runner{informer}...)
		var ended sync.WaitGroup
		ended.Go(func() { _ = group.Run(ctx) })
		fmt.Println(group.WaitForSync(ctx))
		<-registration.Synced()

		all := informer.Lister()
		one := all.Cluster("one")
		found, err := all.ByIndex("by-name", "settings")
		fmt.Println(all.Len(), one.Len(), len(found), err)
		server.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", "one", "default", "settings")
		fmt.Println("deleted", <-deleted)
		cancel()
		ended.Wait()
	})
	// Output:
	// <nil>
	// 2 1 2 <nil>
	// deleted one|default/settings
}

// Informers without Go types, and of metadata.
func ExampleNewDynamicInformer() {
	withServer(func(_ testing.TB, server *clienttest.Server, factory *client.Factory) {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		whole, err := client.NewDynamicInformer(factory.Wildcard(), gvr, client.InformerOptions[*unstructured.Unstructured]{})
		part, partErr := client.NewMetadataInformer(factory.Wildcard(), gvr, client.InformerOptions[*metav1.PartialObjectMetadata]{})
		if err := errors.Join(err, partErr); err != nil {
			fmt.Println(err)
			return
		}
		defer running(whole, part)()
		for _, obj := range whole.Lister().Cluster("two").List(nil) {
			fmt.Println(obj.GetKind(), obj.GetName())
		}
		fmt.Println(part.Lister().Len())
	})
	// Output:
	// ConfigMap settings
	// 2
}

func ExampleKey() {
	obj := configMap("2x1k", "default", "settings")
	key := client.KeyOf(obj)
	fmt.Println(key == client.Key{Cluster: "2x1k", Namespace: "default", Name: "settings"}, client.KeyOf(obj).String())
	again, err := client.SplitKey("2x1k|default/settings")
	fmt.Println(again == key, err)
	fmt.Printf("%#x\n", client.HashOf(key.Cluster.String()))
	var object client.Object = obj
	fmt.Println(object.GetName())
	// Output:
	// true 2x1k|default/settings
	// true <nil>
	// 0x870bf70c9610163b
	// settings
}

// A replica loads one half of all logical clusters, and later the other half, too.
func ExampleRanges() {
	key := client.ByCluster
	first, err := client.PartOf(key, 0, 2)
	fmt.Println(first, err)
	whole, err := client.NewRanges(key, client.Range{First: 0, Last: 1<<64 - 1})
	fmt.Println(whole, err)
	parsed, err := client.ParseRanges("shardRange(object.metadata.cluster, '0x0000000000000000', '0x8000000000000000')")
	fmt.Println(parsed.Equal(first), err)

	withServer(func(_ testing.TB, server *clienttest.Server, factory *client.Factory) {
		changing := client.NewChangingRanges(whole)
		var source client.RangeSource = changing
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: source})
		left := make(chan client.Leave, 2)
		informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{OnLeave: func(_ *corev1.ConfigMap, why client.Leave) { left <- why }})
		defer running(informer)()
		fmt.Println(informer.Lister().Len(), informer.Filtered() == client.FilteredByServer, []client.Filtered{client.FilteredByClient, client.FilteredUnknown})
		changing.Set(client.Ranges{})
		fmt.Println(<-left, <-left)
	})
	// Output:
	// shardRange(object.metadata.cluster, '0x0000000000000000', '0x8000000000000000') <nil>
	// shardRange(object.metadata.cluster, '0x0000000000000000', '0x10000000000000000') <nil>
	// true <nil>
	// 2 true [client unknown]
	// RangeMoved RangeMoved
}

// names is a Sink that stores the keys of objects.
type names struct {
	mu   sync.Mutex
	keys []string
}

func (n *names) Begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys = nil
}

func (*names) End() {}

func (n *names) Put(obj *corev1.ConfigMap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys = append(n.keys, client.KeyOf(obj).String())
}

func (*names) Delete(*corev1.ConfigMap) {}

// A follower is for consumers that store little of many objects.
func ExampleFollower() {
	withServer(func(_ testing.TB, server *clienttest.Server, factory *client.Factory) {
		keep := &names{}
		var sink client.Sink[*corev1.ConfigMap] = keep
		follower := kinds.ConfigMaps.Follower(factory.Wildcard(), "names", sink)
		running(follower)()
		slices.Sort(keep.keys)
		fmt.Println(keep.keys)
	})
	// Output: [one|default/settings two|default/settings]
}

// keeping is a Guard that removes nothing.
type keeping struct{}

func (keeping) BeforeList(context.Context, time.Time) error        { return nil }
func (keeping) Version(metav1.Object) string                       { return "" }
func (keeping) Put(client.Key, client.Object, string, string) bool { return true }
func (keeping) Delete(_ client.Key, _, _ string) bool              { return false }
func (keeping) DropMissing(client.Key) bool                        { return false }
func (keeping) ListComplete()                                      {}
func (keeping) Run(context.Context)                                {}

// A Guard decides which changes are applied.
func ExampleFactory_WithGuard() {
	withServer(func(t testing.TB, server *clienttest.Server, factory *client.Factory) {
		t.Helper()
		guarded := factory.WithGuard(func(informer client.Guarded) client.Guard {
			fmt.Println(informer.Resource())
			return keeping{}
		})
		informer := kinds.ConfigMaps.Informer(guarded.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		registered := make(chan string, 3)
		informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{OnAdd: func(obj *corev1.ConfigMap, _ bool) { registered <- obj.Name }})
		defer running(informer)()
		server.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", "one", "default", "settings")
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, configMap("three", "default", "settings"))
		for range 3 {
			<-registered
		}
		_, found := informer.Lister().Lookup(client.Key{Cluster: "one", Namespace: "default", Name: "settings"})
		fmt.Println(found, informer.Guard() == client.Guard(keeping{}))
	})
	// Output:
	// configmaps
	// true true
}

// Handlers of a Composite are notified by a function of the changes of its informers.
func ExampleNewComposite() {
	withServer(func(_ testing.TB, _ *clienttest.Server, factory *client.Factory) {
		informer := func(cluster string) *client.Informer[*corev1.ConfigMap] {
			return kinds.ConfigMaps.Informer(factory.Cluster(logicalcluster.NewPath(cluster)), client.InformerOptions[*corev1.ConfigMap]{})
		}
		main, other := informer("one"), informer("two")
		var aggregate *client.Composite[*corev1.ConfigMap]
		notify := func(c client.Change[*corev1.ConfigMap]) { aggregate.Notify(c) }
		aggregate = client.NewComposite(main, notify, func(func(client.Key, *corev1.ConfigMap) bool) {})
		aggregate.Follow(other, notify)
		var registered []string
		aggregate.AddEventHandler(client.Handler[*corev1.ConfigMap]{OnAdd: func(obj *corev1.ConfigMap, _ bool) { registered = append(registered, client.KeyOf(obj).String()) }})
		running(main, other)()
		aggregate.Wait()
		slices.Sort(registered)
		fmt.Println(registered)
	})
	// Output: [one|default/settings two|default/settings]
}

// A Union combines the informers of several shards; package shards also follows the Shard objects.
func ExampleUnion() {
	withServer(func(_ testing.TB, server *clienttest.Server, factory *client.Factory) {
		union := client.NewUnion[*corev1.ConfigMap]("settings", nil)
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		fmt.Println(union.Add("blue", informer))
		defer running(informer)()
		all := union.Lister()
		_, shard, err := all.Find(client.Key{Cluster: "two", Namespace: "default", Name: "settings"})
		fmt.Println(shard, err)
	})
	// Output:
	// <nil>
	// blue <nil>
}

// ResourceOf supports kinds that are determined at run time.
func ExampleResourceOf() {
	withServer(func(_ testing.TB, server *clienttest.Server, factory *client.Factory) {
		configMaps, err := client.ResourceOf(kinds.Scheme, corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps")
		if err != nil {
			fmt.Println(err)
			return
		}
		informer := configMaps.Informer(factory.Wildcard(), client.InformerOptions[client.Object]{})
		defer running(informer)()
		fmt.Println(informer.Lister().Len())
	})
	// Output: 2
}

// last is a Sink that counts the objects of the complete state.
type last[T client.Object] struct{ count int }

func (l *last[T]) Begin() { l.count = 0 }
func (*last[T]) End()     {}
func (l *last[T]) Put(T)  { l.count++ }
func (*last[T]) Delete(T) {}

// A follower without Go types.
func ExampleNewDynamicFollower() {
	withServer(func(_ testing.TB, server *clienttest.Server, factory *client.Factory) {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		sink := &last[*unstructured.Unstructured]{}
		follower, err := client.NewDynamicFollower(factory.Wildcard(), gvr, "whole", sink)
		if err != nil {
			fmt.Println(err)
			return
		}
		running(follower)()
		fmt.Println(sink.count)
	})
	// Output: 2
}
