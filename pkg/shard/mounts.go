package shard

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/controllers/mount"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

// mountStore implements mount.Store.
type mountStore struct {
	*usage.Counter
	of *customresource.Server
}

// KindOf implements mount.Store.
func (s mountStore) KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (mount.Kind, bool, error) {
	found, ok, err := s.of.KindOf(ctx, cluster, kind)
	return mount.Kind{Resource: found.Resource, Prefix: found.Prefix, Identity: found.Identity, Namespaced: found.Namespaced}, ok, err
}
