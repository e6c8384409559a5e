package request

import (
	"context"
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
)

// Wildcard is the URL segment that stands for all logical clusters of a shard,
// and on the cache server for all shards.
const Wildcard = "*"

// ErrNoCluster says that a request that needs a logical cluster has none in
// its context.
var ErrNoCluster = errors.New("no logical cluster in the request: use a URL of the form /clusters/<name>/…")

// ErrWildcard says that a request names all logical clusters where it must
// name one.
var ErrWildcard = errors.New("the request is for all logical clusters (*), but it must name one")

// Cluster is the logical cluster that a request is for: one by name, or all
// logical clusters of the shard.
type Cluster struct {
	// Name is the resolved name; empty if and only if Wildcard is set.
	Name logicalcluster.Name
	// Wildcard is set for requests below /clusters/*.
	Wildcard bool
}

// String returns the name, or "*" for the wildcard.
func (c Cluster) String() string {
	if c.Wildcard {
		return Wildcard
	}
	return c.Name.String()
}

// Shard is the shard segment of a request to the cache server: one shard by
// name, or all of them. Requests to other servers have none.
type Shard struct {
	// Name is the shard's name; empty if and only if Wildcard is set.
	Name string
	// Wildcard is set for requests below /shards/*.
	Wildcard bool
}

// String returns the name, or "*" for the wildcard.
func (s Shard) String() string {
	if s.Wildcard {
		return Wildcard
	}
	return s.Name
}

type (
	clusterKey struct{}
	nowhereKey struct{}
	shardKey   struct{}
)

// WithCluster returns a context that carries c.
func WithCluster(ctx context.Context, c Cluster) context.Context {
	return context.WithValue(ctx, clusterKey{}, c)
}

// WithClusterName returns a context for the one logical cluster name.
func WithClusterName(ctx context.Context, name logicalcluster.Name) context.Context {
	return WithCluster(ctx, Cluster{Name: name})
}

// WithWildcard returns a context for all logical clusters of the shard.
func WithWildcard(ctx context.Context) context.Context {
	return WithCluster(ctx, Cluster{Wildcard: true})
}

// ClusterFrom returns the logical cluster of ctx, and whether there is one.
func ClusterFrom(ctx context.Context) (Cluster, bool) {
	c, ok := ctx.Value(clusterKey{}).(Cluster)
	return c, ok && (c.Wildcard || c.Name != "")
}

// ClusterNameFrom returns the one logical cluster that ctx names. It fails with
// ErrNoCluster where there is none and with ErrWildcard for the wildcard.
func ClusterNameFrom(ctx context.Context) (logicalcluster.Name, error) {
	c, ok := ClusterFrom(ctx)
	switch {
	case !ok:
		return "", ErrNoCluster
	case c.Wildcard:
		return "", ErrWildcard
	default:
		return c.Name, nil
	}
}

// WithNowhere returns a context for a path that leads to no logical cluster, as
// far as the server knows.
func WithNowhere(ctx context.Context, path logicalcluster.Path) context.Context {
	return context.WithValue(ctx, nowhereKey{}, path)
}

// NowhereFrom returns the path of ctx that leads to no logical cluster, and
// whether there is one. A request with neither a logical cluster nor such a
// path is about the serving process.
func NowhereFrom(ctx context.Context) (logicalcluster.Path, bool) {
	path, ok := ctx.Value(nowhereKey{}).(logicalcluster.Path)
	return path, ok
}

// WithShard returns a context that carries the shard segment s.
func WithShard(ctx context.Context, s Shard) context.Context {
	return context.WithValue(ctx, shardKey{}, s)
}

// ShardFrom returns the shard segment of ctx, and whether there is one.
func ShardFrom(ctx context.Context) (Shard, bool) {
	s, ok := ctx.Value(shardKey{}).(Shard)
	return s, ok && (s.Wildcard || s.Name != "")
}
