package cacheserver_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/cacheserver"
)

// TestRelayOfShardsOfRoot marks a Shard in root as regional. It must be relayed nevertheless, because other regions
// would interpret its deletion as the removal of the shard.
func TestRelayOfShardsOfRoot(t *testing.T) {
	t.Parallel()
	regions := newRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"].run(t), regions["us"]
	us.change = append(us.change, func(o *cacheserver.Options) { o.RemovedShardGracePeriod = time.Second })
	us.run(t)
	root := newTestShard(t, "root")
	shards, others := in(t, root.f, "root", shardsGVR), in(t, root.f, "root", workspaceTypesGVR)
	create(t, shards, object(shardsGVR, "Shard", "blue", nil))
	create(t, others, object(workspaceTypesGVR, "WorkspaceType", "public", nil))
	eu.push(t, root)
	requireReplicas(t, us.cacheServer, []string{"root|root|blue"})
	requireCheckpoint(t, us, eu, "root", "eu")

	const region = `{"metadata":{"annotations":{"cache.shardplane.io/scope":"region"}}}`
	for _, name := range []string{"blue", "public"} {
		of := shards
		if name == "public" {
			of = others
		}
		mustPatch(t, of, name, region)
	}
	eventually(t, "the replicas of other regional objects are deleted", func() bool {
		list, err := in(t, us.f.Shard("root"), "root", workspaceTypesGVR).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	requireCheckpoint(t, us, eu, "root", "eu")
	requireEqual(t, eu, us, "root", "blue")
	create(t, in(t, us.f.Shard("blue"), "c", workspaceTypesGVR), object(workspaceTypesGVR, "WorkspaceType", "pushed", nil))
}
