package shard

import (
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"

	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// load returns the load of the shard, or nil while objects have not been counted yet.
func (s *installation) load() *shardload.Load {
	total, known := s.usage.Total()
	if !known {
		return nil
	}
	o := s.options.Capacity
	inUse, quota := s.usage.Storage()
	storage := shardload.Amount{Used: inUse, Limit: o.MaxStorage}
	if quota > 0 && (storage.Limit == 0 || quota < storage.Limit) {
		storage.Limit = quota
	}
	return &shardload.Load{
		Workspaces: shardload.Amount{Used: s.local.countWorkspaces(), Limit: o.MaxWorkspaces},
		Objects:    shardload.Amount{Used: total.Objects, Limit: o.MaxObjects},
		Storage:    storage,
		Full:       s.usage.Full(),
		Caches:     s.connections.cache.Reasons(),
	}
}

// countWorkspaces returns the number of logical clusters that belong to a workspace.
func (l *local) countWorkspaces() int64 {
	n := l.logicalClusters.Lister().Len()
	for _, system := range []logicalcluster.Name{core.RootCluster, tenancy.AdminCluster, tenancy.HomesCluster} {
		if l.has(system) {
			n--
		}
	}
	return int64(n)
}
