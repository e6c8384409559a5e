package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Two caches have the same replicas, and the one that is preferred is away: informers follow the other one. What
// replicas are known to be complete is told by the marks of shards in the caches.
func ExampleNewCaches() {
	withServer(func(t testing.TB, server *clienttest.Server, factory *client.Factory) {
		t.Helper()
		replica := configMap("three", "default", "settings")
		replica.Annotations["kcp.io/shard"], replica.Annotations["cache.kcp.io/original-resource-version"] = "green", "7"
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, replica)
		marks := func(_ context.Context, cache *client.Factory, _ int64) (map[string]client.Mark, error) {
			if cache != factory {
				return nil, errors.New("away")
			}
			return map[string]client.Mark{"green": {Epoch: "0197d3a1-0c5e-7000-8000-000000000000", Versions: map[string]string{"configmaps": "7"}}}, nil
		}
		away, err := client.NewFactory(server.ClientConfig())
		if err != nil {
			fmt.Println(err)
			return
		}
		caches, err := client.NewCaches(marks, client.Cache{Name: "near", Factory: away}, client.Cache{Name: "far", Factory: factory})
		if err != nil {
			fmt.Println(err)
			return
		}
		caches.SetTiming(client.CacheTiming{Away: 3 * time.Second})
		removed := map[string]bool{}
		caches.SetRemoved(func(shard string) bool { return removed[shard] })
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- caches.Run(ctx) }()
		others := kinds.ConfigMaps.Informer(caches.Factory().Shard("*").Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		stop := running(others)
		for _, obj := range others.Lister().Cluster("three").List(nil) {
			fmt.Println(obj.Name, obj.ResourceVersion)
		}
		fmt.Println(caches.Name(), len(others.Lacks([]string{"green"})), len(others.Lacks([]string{"red"})))
		stop()
		cancel()
		fmt.Println(<-ended)
	})
	// Output:
	// settings 7
	// far 0 1
	// <nil>
}
