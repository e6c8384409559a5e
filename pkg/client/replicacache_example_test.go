package client_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// An informer reads replicas of other shards. The marks of the shards on the cache server specify which replicas are
// complete.
func ExampleNewReplicaCache() {
	withServer(func(t testing.TB, server *clienttest.Server, factory *client.Factory) {
		t.Helper()
		replica := configMap("three", "default", "settings")
		replica.Annotations["kcp.io/shard"], replica.Annotations["cache.kcp.io/original-resource-version"] = "green", "7"
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, replica)
		marks := func(context.Context, *client.Factory) (map[string]client.Mark, error) {
			return map[string]client.Mark{"green": {Epoch: "0197d3a1-0c5e-7000-8000-000000000000", Versions: map[string]string{"configmaps": "7"}}}, nil
		}
		cache := client.NewReplicaCache("cache", factory, marks)
		removed := map[string]bool{}
		cache.SetRemoved(func(shard string) bool { return removed[shard] })
		others := kinds.ConfigMaps.Informer(cache.Factory().Shard("*").Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		defer running(others)()
		for _, obj := range others.Lister().Cluster("three").List(nil) {
			fmt.Println(obj.Name, obj.ResourceVersion)
		}
		fmt.Println(len(others.Lacks([]string{"green"})), len(others.Lacks([]string{"red"})))
	})
	// Output:
	// settings 7
	// 0 1
}
