package mcprovider_test

import (
	"context"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/test/harness"
)

// greeter labels ConfigMaps.
type greeter struct{ mcmanager.Manager }

func (g greeter) Reconcile(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
	cluster, err := g.GetCluster(ctx, request.ClusterName)
	if err != nil {
		return reconcile.Result{}, err
	}
	obj := &corev1.ConfigMap{}
	if err := cluster.GetClient().Get(ctx, request.NamespacedName, obj); err != nil {
		return reconcile.Result{}, ctrlclient.IgnoreNotFound(err)
	}
	patch := ctrlclient.MergeFrom(obj.DeepCopy())
	obj.Labels = map[string]string{"greeted": "yes"}
	return reconcile.Result{}, cluster.GetClient().Patch(ctx, obj, patch)
}

// Replicas of a controller divide the logical clusters of all shards, and label ConfigMaps. proxy is the configuration of a client of the
// front-proxy, and shard of a shard.
func Example() {
	greet := func(ctx context.Context, proxy, shard *rest.Config) error {
		reach, err := client.NewFactory(proxy)
		if err != nil {
			return err
		}
		root, err := client.NewFactory(shard)
		if err != nil {
			return err
		}
		replicas, err := ring.New(ring.Config{
			Name: "greeter", Key: client.ByCluster, Leases: reach.Cluster(logicalcluster.NewPath("root")), Namespace: "default",
		})
		if err != nil {
			return err
		}
		provider, err := mcprovider.New(mcprovider.Options{
			Config: proxy, Shards: shards.FromRoot(root.Cluster(core.RootCluster.Path())),
			Ring: replicas, NoEngage: true,
		})
		if err != nil {
			return err
		}
		m, err := mcmanager.New(proxy, provider, manager.Options{})
		if err != nil {
			return err
		}
		err = mcbuilder.ControllerManagedBy(m).Named("greeter").
			WatchesRawSource(provider.Source(&corev1.ConfigMap{})).
			Complete(provider.Gate(greeter{m}))
		if err != nil {
			return err
		}
		return replicas.Run(ctx, m.Start) // works until other replicas take over. Then the process must end
	}
	_ = greet
}

// TestREADME checks that the code in the README is a part of the example.
func TestREADME(t *testing.T) {
	readme := harness.ReadFile(t, "README.md")
	example := harness.ReadFile(t, "example_test.go")
	_, shown, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	shown, _, found = strings.Cut(shown, "```")
	require.True(t, found)
	indented := ""
	for line := range strings.Lines(shown) {
		indented += "\t\t" + line
	}
	require.Contains(t, string(example), indented)
}
