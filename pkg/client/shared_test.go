package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/background"
)

// TestAsShared: a library that uses client-go's informers gets one of two logical clusters.
func TestAsShared(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("a", "default", "x"))
	server.Put(t, gvr, configMap("b", "default", "x"))
	server.Put(t, gvr, configMap("b", "default", "y"))
	ranges, err := client.PartOf(client.ByCluster, 0, 1)
	require.NoError(t, err)
	changing := client.NewChangingRanges(ranges)
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: changing})
	shared := client.AsShared(informer, "a")
	require.False(t, shared.HasSynced())
	run(t, informer)
	stop := background.Run(t.Context(), t, func(ctx context.Context) error {
		shared.RunWithContext(ctx)
		return nil
	})
	require.True(t, cache.WaitForNamedCacheSyncWithContext(t.Context(), shared.HasSynced))
	<-shared.HasSyncedChecker().Done()
	require.Equal(t, "configmaps@* of a", shared.HasSyncedChecker().Name())
	require.Equal(t, []string{"default/x"}, shared.GetStore().ListKeys())
	require.NotEmpty(t, shared.LastSyncResourceVersion())
	require.False(t, shared.GetController().(cache.SharedInformer).IsStopped()) //nolint:forcetypeassert // it is itself

	notified := &log{}
	name := func(obj any) string {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
		require.NoError(t, err)
		return key
	}
	registration, err := shared.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { notified.add("add %s %t", name(obj), initial) },
		UpdateFunc: func(_, obj any) { notified.add("update %s", name(obj)) },
		DeleteFunc: func(obj any) {
			_, missed := obj.(cache.DeletedFinalStateUnknown)
			notified.add("delete %s %t", name(obj), missed)
		},
	})
	require.NoError(t, err)
	<-registration.HasSyncedChecker().Done()
	expect := func(want ...string) {
		t.Helper()
		eventually(t, func() bool { return slices.Equal(notified.all(), want) }, fmt.Sprint(want))
	}
	expect("add default/x true")
	require.NoError(t, shared.AddIndexers(cache.Indexers{"colour": func(obj any) ([]string, error) {
		return []string{obj.(*corev1.ConfigMap).Labels["colour"]}, nil //nolint:forcetypeassert // they are
	}}))
	server.Put(t, gvr, configMap("b", "default", "x"))
	server.Put(t, gvr, configMap("a", "default", "x", func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"colour": "red"} }))
	expect("add default/x true", "update default/x")
	found, err := shared.GetIndexer().ByIndex("colour", "red")
	require.NoError(t, err)
	require.Len(t, found, 1)
	server.Delete(t, gvr, "", "a", "default", "x")
	expect("add default/x true", "update default/x", "delete default/x false")
	require.Empty(t, shared.GetStore().ListKeys())
	server.Put(t, gvr, configMap("a", "default", "z"))
	expect("add default/x true", "update default/x", "delete default/x false", "add default/z false")

	// An object that leaves is not deleted.
	changing.Set(client.Ranges{})
	eventually(t, func() bool { return len(shared.GetStore().ListKeys()) == 0 }, "the object is removed from the store")
	require.NoError(t, shared.RemoveEventHandler(registration))
	expect("add default/x true", "update default/x", "delete default/x false", "add default/z false")
	require.Error(t, shared.RemoveEventHandler(nil))
	require.Error(t, shared.SetTransform(nil))
	require.Error(t, shared.SetWatchErrorHandler(nil))
	require.Error(t, shared.SetWatchErrorHandlerWithContext(nil))
	stop()
	require.True(t, shared.IsStopped())
	_, err = shared.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	require.Error(t, err)
}

// TestResourceOf follows a kind that is determined at run time: objects have its Go type.
func TestResourceOf(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("one", "default", "a", value("x")))
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	resource, err := client.ResourceOf(kinds.Scheme, kind, "configmaps", client.WithProtobuf())
	require.NoError(t, err)
	informer := resource.Informer(factory.Wildcard(), client.InformerOptions[client.Object]{})
	runSynced(t, informer)
	held, err := informer.Lister().Cluster("one").Get("default", "a")
	require.NoError(t, err)
	require.Equal(t, "x", held.(*corev1.ConfigMap).Data["v"])
	read, err := resource.InNamespace(factory.Cluster(logicalcluster.NewPath("one")), "default").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, held.GetUID(), read.(*corev1.ConfigMap).UID)

	_, err = client.ResourceOf(kinds.Scheme, corev1.SchemeGroupVersion.WithKind("None"), "nones")
	require.Error(t, err)
	_, err = client.ResourceOf(kinds.Scheme, corev1.SchemeGroupVersion.WithKind("ListOptions"), "options")
	require.Error(t, err)
}

// TestSchemes: a scheme without the types of the resource is an error when the resource is defined.
func TestSchemes(t *testing.T) {
	gv := schema.GroupVersion{Group: "example.io", Version: "v1"}
	require.Panics(t, func() {
		client.DefineResource[Widget, WidgetList](gv, "widgets", client.WithScheme(runtime.NewScheme()))
	})
	other := runtime.NewScheme()
	other.AddKnownTypes(schema.GroupVersion{Group: "example.io", Version: "v2"}, &Widget{}, &WidgetList{})
	require.Panics(t, func() { client.DefineResource[Widget, WidgetList](gv, "widgets", client.WithScheme(other)) })
	client.DefineResource[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps", client.WithScheme(kinds.Scheme), client.WithProtobuf())
}
