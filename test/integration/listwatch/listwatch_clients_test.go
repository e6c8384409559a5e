package listwatch

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// testClients follows collections with informers of client-go.
func testClients(t *testing.T, e *kit.Env, all []endpoint) {
	testParts(t, e)
	proxy := harness.In(e.Proxy(), "root:listwatch")
	kube := harness.Clientset(t, proxy, "")
	anything, err := dynamic.NewForConfig(proxy)
	require.NoError(t, err)
	objects, err := metadata.NewForConfig(proxy)
	require.NoError(t, err)
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	half := func(o *metav1.ListOptions) { o.ShardSelector = lowerHalf }

	typed := informers.NewSharedInformerFactoryWithOptions(kube, 0).Core().V1().ConfigMaps()
	followed := map[string]cache.SharedIndexInformer{
		"configmaps": typed.Informer(),
		"widgets":    dynamicinformer.NewDynamicSharedInformerFactory(anything, 0).ForResource(widgets).Informer(),
		"metadata":   metadatainformer.NewSharedInformerFactory(objects, 0).ForResource(widgets).Informer(),
		"sharded configmaps": informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTweakListOptions(half)).
			Core().V1().ConfigMaps().Informer(),
		"sharded widgets":  dynamicinformer.NewFilteredDynamicSharedInformerFactory(anything, 0, "", half).ForResource(widgets).Informer(),
		"sharded metadata": metadatainformer.NewFilteredSharedInformerFactory(objects, 0, "", half).ForResource(widgets).Informer(),
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	for name, informer := range followed {
		wg.Go(func() { informer.RunWithContext(ctx) })
		e.Eventually(name+" syncs", informer.HasSynced)
	}
	byPath := func(path string, query ...string) int {
		for _, at := range all {
			if at.name == path {
				return len(at.list(t, "", query...).Items)
			}
		}
		t.Fatalf("endpoint %q not found", path)
		return 0
	}
	harness.Create(t, kube.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "client-"}})
	for name, want := range map[string]int{
		"configmaps":         byPath("configmaps of all namespaces"),
		"widgets":            byPath("custom resources through the proxy"),
		"metadata":           byPath("custom resources through the proxy"),
		"sharded configmaps": byPath("configmaps of all namespaces", "shardSelector", lowerHalf),
		"sharded widgets":    byPath("custom resources through the proxy", "shardSelector", lowerHalf),
		"sharded metadata":   byPath("custom resources through the proxy", "shardSelector", lowerHalf),
	} {
		e.Eventually(name+" contains the objects of the server", func() bool { return len(followed[name].GetStore().List()) == want })
	}
	for _, obj := range followed["sharded configmaps"].GetStore().List() {
		accessor, err := meta.Accessor(obj)
		require.NoError(t, err)
		require.NotEmpty(t, accessor.GetUID())
	}
}
