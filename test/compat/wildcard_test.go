package compat_test

import (
	"fmt"
	"slices"
	"testing"

	kcpdynamic "github.com/kcp-dev/client-go/dynamic"
	"github.com/kcp-dev/client-go/dynamic/dynamicinformer"
	kcpinformers "github.com/kcp-dev/client-go/informers"
	kcpkubernetes "github.com/kcp-dev/client-go/kubernetes"
	kcpmetadata "github.com/kcp-dev/client-go/metadata"
	"github.com/kcp-dev/logicalcluster/v3"
	kcpclientset "github.com/kcp-dev/sdk/client/clientset/versioned/cluster"
	kcpsdkinformers "github.com/kcp-dev/sdk/client/informers/externalversions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// TestInformers runs kcp's informers on all logical clusters of a shard: typed ones, with protobuf
// and with JSON, and dynamic ones. Metadata clients list and watch. Objects with the same name must
// remain separate.
func TestInformers(t *testing.T) {
	names := workspaces(t, "informers", 2, "shard-1")
	writer, err := kcpkubernetes.NewForConfig(proxy(t))
	require.NoError(t, err)
	put := func(name logicalcluster.Name, content string) {
		_, err := writer.Cluster(name.Path()).CoreV1().ConfigMaps("default").Update(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"content": content},
		}, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	for _, name := range names {
		_, err := writer.Cluster(name.Path()).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"content": "first"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	ctx := informerContext(t)
	gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
	content := map[string]func(logicalcluster.Name) string{}
	for _, kind := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		c := rest.CopyConfig(shard(t, 1))
		c.ContentType = kind
		clients, err := kcpkubernetes.NewForConfig(c)
		require.NoError(t, err)
		factory := kcpinformers.NewSharedInformerFactory(clients, 0)
		informer := factory.Core().V1().ConfigMaps()
		lister := informer.Lister()
		factory.Start(ctx.Done())
		content[kind] = func(name logicalcluster.Name) string {
			obj, err := lister.Cluster(name).ConfigMaps("default").Get("a")
			if err != nil {
				return err.Error()
			}
			return obj.Data["content"]
		}
	}
	dynamic, err := kcpdynamic.NewForConfig(shard(t, 1))
	require.NoError(t, err)
	untyped := dynamicinformer.NewFilteredDynamicInformer(dynamic, gvr, 0, nil, nil)
	go untyped.Informer().Run(ctx.Done())
	content["dynamic"] = func(name logicalcluster.Name) string {
		obj, err := untyped.Lister().ByCluster(name).ByNamespace("default").Get("a")
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(obj.(runtime.Unstructured).UnstructuredContent()["data"].(map[string]any)["content"])
	}
	for informer, read := range content {
		for _, name := range names {
			eventually(t, informer+" lacks the existing object", func() bool { return read(name) == "first" })
		}
	}
	put(names[0], "second")
	for informer, read := range content {
		eventually(t, informer+" lacks the change", func() bool { return read(names[0]) == "second" })
		require.Equal(t, "first", read(names[1]), informer)
	}

	// The metadata informers of this release expect unstructured objects, and reject the metadata
	// of their clients with any server. Therefore, the clients are tested directly.
	meta, err := kcpmetadata.NewForConfig(shard(t, 1))
	require.NoError(t, err)
	list, err := meta.Resource(gvr).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	in := func(obj metav1.Object) bool {
		return obj.GetName() == "a" && slices.Contains(names, logicalcluster.From(obj))
	}
	found := 0
	for i := range list.Items {
		if in(&list.Items[i]) {
			found++
		}
	}
	require.Equal(t, 2, found)

	initial, err := meta.Resource(gvr).Watch(ctx, metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	require.NoError(t, err)
	defer initial.Stop()
	found = 0
	for event := range initial.ResultChan() {
		obj, ok := event.Object.(*metav1.PartialObjectMetadata)
		require.True(t, ok, "%T", event.Object)
		if event.Type == watch.Bookmark && obj.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			break
		}
		if event.Type == watch.Added && in(obj) {
			found++
		}
	}
	require.Equal(t, 2, found)
}

// TestSDK runs the SDK's informers of kcp's own kinds on a shard, and on the cache server for all
// shards and for one.
func TestSDK(t *testing.T) {
	names := workspaces(t, "sdk", 1, "shard-1")
	ctx := informerContext(t)
	for _, test := range []struct {
		name   string
		config *rest.Config
		below  string
	}{
		{"shard", shard(t, 0), ""},
		{"cache", cacheServer(t), "/services/cache/shards/*"},
		{"one shard of the cache", cacheServer(t), "/services/cache/shards/root"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := rest.CopyConfig(test.config)
			c.Host += test.below
			clients, err := kcpclientset.NewForConfig(c)
			require.NoError(t, err)
			factory := kcpsdkinformers.NewSharedInformerFactory(clients, 0)
			shards := factory.Core().V1alpha1().Shards().Lister()
			types := factory.Tenancy().V1alpha1().WorkspaceTypes().Lister()
			factory.Start(ctx.Done())
			eventually(t, "Shards or types of root are missing", func() bool {
				_, err := types.Cluster("root").Get("universal")
				_, other := shards.Cluster("root").Get("shard-1")
				return err == nil && other == nil
			})
		})
	}
	clients, err := kcpclientset.NewForConfig(shard(t, 1))
	require.NoError(t, err)
	factory := kcpsdkinformers.NewSharedInformerFactory(clients, 0)
	lister := factory.Core().V1alpha1().LogicalClusters().Lister()
	factory.Start(ctx.Done())
	eventually(t, "the LogicalCluster is missing on its shard", func() bool {
		_, err := lister.Cluster(names[0]).Get("cluster")
		return err == nil
	})
}
