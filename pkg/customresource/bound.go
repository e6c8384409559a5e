package customresource

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// What whoever adds a source needs besides: names, and an end of what it served.

// Reserve keeps names in a logical cluster for an owner whom source is to serve, as
// definitions.Storage does. The server must have CustomResourceDefinitions.
func (s *Server) Reserve(ctx context.Context, cluster logicalcluster.Name, owner string, source definitions.Source, wanted []definitions.Wanted) (release func(), conflict *definitions.Conflict, err error) {
	return s.crds.Reserve(ctx, cluster, owner, source, wanted)
}

// FollowNames has f told where names may have become free, as definitions.Storage does.
func (s *Server) FollowNames(f func(cluster logicalcluster.Name, group string)) (stop func()) {
	return s.crds.FollowNames(f)
}

// Empty deletes all objects of a definition in a logical cluster, past admission but
// through their finalizers, and returns what is left.
func (s *Server) Empty(ctx context.Context, cluster logicalcluster.Name, d *definitions.Definition) (definitions.Remaining, error) {
	used := s.table.Acquire(d.Schema)
	defer func() { s.table.Release(used, time.Now()) }()
	instances, err := s.instances(used.CRD())
	if err != nil {
		return definitions.Remaining{}, err
	}
	ctx = request.WithIdentity(request.WithClusterName(ctx, cluster), used.Resource, d.Identity)
	return definitions.Empty(ctx, instances)
}
