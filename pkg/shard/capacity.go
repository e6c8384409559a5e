package shard

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// CapacityOptions say how much a shard takes before new workspaces go to others. It keeps
// what it has, and what is written there.
type CapacityOptions struct {
	// MaxWorkspaces and MaxObjects are numbers, and MaxStorage are bytes that etcd has in use;
	// 0 means any.
	MaxWorkspaces, MaxObjects, MaxStorage int64
}

// The flags that set them.
const (
	maxWorkspacesFlag = "max-workspaces"
	maxObjectsFlag    = "max-objects"
	maxStorageFlag    = "max-storage"
)

// AddFlags adds the flags to fs.
func (o *CapacityOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&o.MaxWorkspaces, maxWorkspacesFlag, o.MaxWorkspaces, "how many workspaces the shard holds before new ones go to other shards, and wait while there is none; 0 means any number. From nine tenths on it takes those that fit nowhere else")
	fs.Int64Var(&o.MaxObjects, maxObjectsFlag, o.MaxObjects, "how many objects all logical clusters of the shard have, without Events, before new workspaces go to other shards, and wait while there is none; 0 means any number")
	fs.Var(limits.Quantity{To: &o.MaxStorage}, maxStorageFlag, "how much etcd has in use, history included, before new workspaces go to other shards, and wait while there is none; 0 means as much as the quota of etcd allows")
}

// Validate returns what is wrong with o.
func (o *CapacityOptions) Validate(etcd etcd.Options) []error {
	var errs []error
	for _, option := range []struct {
		flag, any string
		value     int64
	}{{maxWorkspacesFlag, "any number", o.MaxWorkspaces}, {maxObjectsFlag, "any number", o.MaxObjects}, {maxStorageFlag, "as much as the quota of etcd allows", o.MaxStorage}} {
		if option.value < 0 {
			errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for %s", option.flag, option.value, option.any))
		}
	}
	if quota := etcd.QuotaBytes; len(etcd.Servers) == 0 && quota > 0 && o.MaxStorage > quota {
		errs = append(errs, fmt.Errorf("--%s %s is more than --etcd-quota-backend-bytes, %d: raise that, or use less", maxStorageFlag, resource.NewQuantity(o.MaxStorage, resource.BinarySI), quota))
	}
	return errs
}

// load returns what the shard holds, or nil as long as that is not known.
func (s *Server) load() *shardload.Load {
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
		Caches:     s.others.cache.Reasons(),
	}
}

// countWorkspaces returns how many logical clusters the shard holds that belong to a workspace.
func (l *local) countWorkspaces() int64 {
	n := l.logicalClusters.Lister().Len()
	for _, system := range []logicalcluster.Name{core.RootCluster, tenancy.AdminCluster, tenancy.HomesCluster} {
		if l.has(system) {
			n--
		}
	}
	return int64(n)
}
