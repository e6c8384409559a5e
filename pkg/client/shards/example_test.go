package shards_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
)

// One of two shards does not respond.
func ExampleMulti() {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		w := newWorld(t)
		blue := clienttest.New(t, kinds.Scheme)
		put(t, blue, object("2x1k", "settings", ""))
		w.announce(t, "blue", blue.URL)
		w.announce(t, "green", "https://127.0.0.1:1")

		source := shards.FromRoot(factoryOf(t, w.root.URL).Cluster(logicalcluster.NewPath("root")))
		dial := shards.Access(insecure)
		multi, err := shards.New(source, kinds.ConfigMaps, shards.Options[*corev1.ConfigMap]{Dial: dial})
		if err != nil {
			fmt.Println(err)
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- multi.Run(ctx) }()
		which := shards.Reachable // or All
		fmt.Println(multi.WaitForSync(ctx, which))
		_, shard, err := multi.Lister().Find(client.Key{Cluster: "2x1k", Namespace: "default", Name: "settings"})
		fmt.Println(shard, err)
		missing := multi.Missing()
		fmt.Println(missing[0].Shard)
		cancel()
		fmt.Println(<-ended)
	})
	// Output:
	// <nil>
	// blue <nil>
	// green
	// <nil>
}

// The list of shards may be a table, or be read from the cache server or from any shard; objects may have no Go types.
func ExampleNewWith() {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		blue := clienttest.New(t, kinds.Scheme)
		put(t, blue, object("2x1k", "settings", ""))
		var open shards.Open[*metav1.PartialObjectMetadata] = func(scope client.Scope, options client.InformerOptions[*metav1.PartialObjectMetadata]) (*client.Informer[*metav1.PartialObjectMetadata], error) {
			return client.NewMetadataInformer(scope, kinds.ConfigMaps.GroupVersionResource, options)
		}
		for _, source := range []shards.Source{
			shards.FromAny(factoryOf(t, blue.URL)),
			shards.FromCache(factoryOf(t, blue.URL)),
			shards.Static(map[string]*rest.Config{"blue": blue.ClientConfig()}),
		} {
			multi, err := shards.NewWith(source, open, shards.Options[*metav1.PartialObjectMetadata]{})
			if err != nil {
				fmt.Println(err)
				return
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- multi.Run(ctx) }()
			fmt.Println(multi.WaitForSync(ctx, shards.All), multi.Lister().Len())
			cancel()
			fmt.Println(<-ended)
		}
	})
	// Output:
	// <nil> 0
	// <nil>
	// <nil> 0
	// <nil>
	// <nil> 1
	// <nil>
}
