package replicas_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// withDual calls f with a Dual of a shard and of a cache server with a replica of shard green. Both are one server
// here.
func withDual(f func(dual *replicas.Dual[*corev1.ConfigMap])) {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		server := clienttest.New(t, kinds.Scheme)
		put := func(cluster, name string, annotations map[string]string) {
			annotations["kcp.io/cluster"] = cluster
			server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations}})
		}
		put("three", "settings", map[string]string{"kcp.io/shard": "green", "cache.kcp.io/original-resource-version": "7"})
		put("one", "settings", map[string]string{})
		factory, err := client.NewFactory(server.ClientConfig())
		require.NoError(t, err)
		defer factory.CloseIdleConnections()
		checkpoints := func(context.Context, *client.Factory) (map[string]replicas.Checkpoint, error) {
			return map[string]replicas.Checkpoint{"green": {Epoch: "0197d3a1-0c5e-7000-8000-000000000000", Versions: map[string]string{"configmaps": "7"}}}, nil
		}
		cache := replicas.NewCache("cache", factory, checkpoints)
		own := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		others := kinds.ConfigMaps.Informer(cache.Factory().Shard("*").Wildcard(), replicas.OfOthers("blue", client.InformerOptions[*corev1.ConfigMap]{}))
		dual := replicas.NewDual(own, others, replicas.DualOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- dual.Run(ctx) }()
		defer func() {
			cancel()
			require.NoError(t, <-ended)
		}()
		for _, informer := range []client.Runner{own, others} {
			require.NoError(t, informer.WaitForSync(ctx))
		}
		f(dual)
	})
}

// Objects of the own shard are preferred to replicas.
func ExampleDual() {
	withDual(func(dual *replicas.Dual[*corev1.ConfigMap]) {
		found, err := dual.Get("one", "default", "settings")
		fmt.Println(found.Name, err)
		_, err = dual.Get("one", "default", "other")
		fmt.Println(err)
	})
	// Output:
	// settings <nil>
	// configmaps "other" not found
}

// The checkpoints of the shards on the cache server determine which replicas are complete.
func ExampleLacks() {
	withDual(func(dual *replicas.Dual[*corev1.ConfigMap]) {
		for _, obj := range dual.Others().Lister().Cluster("three").List(nil) {
			fmt.Println(obj.Name, obj.ResourceVersion)
		}
		fmt.Println(len(replicas.Lacks(dual.Others(), []string{"green"})), len(replicas.Lacks(dual.Others(), []string{"red"})))
	})
	// Output:
	// settings 7
	// 0 1
}
