package controllers

import (
	"slices"

	"github.com/kcp-dev/sdk/apis/core"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/heartbeat"
	"github.com/shardplane/shardplane/pkg/controllers/shardhealth"
	"github.com/shardplane/shardplane/pkg/controllers/shardregistration"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

func newShardRegistration(d Deps) (reconcile.Made, error) {
	return after(shardregistration.New(shardregistration.Config{
		ShardName:           d.ShardName,
		BaseURL:             d.BaseURL,
		ExternalURL:         d.ExternalURL,
		VirtualWorkspaceURL: d.VirtualWorkspaceURL,
		Root:                d.rootShard().Cluster(core.RootCluster.Path()),
		Own:                 d.Informers.OwnShard,
		Checkpoints:         d.Informers.ReplicationCheckpoints,
		Covers: func(mark *replicationcheckpoints.ReplicationCheckpoint) bool {
			return !slices.ContainsFunc(replication.Defaults(), func(r replication.Resource) bool {
				_, named := mark.Resources[r.GroupResource().String()]
				return !named
			})
		},
	}), d.Informers.OwnShard), nil
}

func newHeartbeat(d Deps) (reconcile.Made, error) {
	return after(heartbeat.New(heartbeat.Config{
		ShardName: d.ShardName, Root: d.rootShard().Cluster(core.RootCluster.Path()), Own: d.Informers.OwnShard, Load: d.Load, Done: d.Heartbeat,
	}), d.Informers.OwnShard), nil
}

func newShardHealth(d Deps) (reconcile.Made, error) {
	leases := shardhealth.NewInformer(d.Local)
	made := after(shardhealth.New(shardhealth.Config{
		ShardName: d.ShardName, Local: d.Local, Objects: d.Objects, Shards: d.Informers.Shards, Leases: leases, Metrics: d.Metrics,
	}), d.Informers.Shards)
	made.Owns = []client.Runner{leases}
	return made, nil
}
