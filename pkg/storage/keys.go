package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// noCluster is the key segment of objects without a logical cluster in the watch cache. It is not a
	// valid name, so only wildcard requests return such objects.
	noCluster = "~"

	// identityPrefix is the prefix of an identity's key segment. No logical cluster or shard has such a name.
	identityPrefix = ":"

	// coreGroup is the key segment of the core group.
	coreGroup = "core"
)

// ResourcePrefix returns the key prefix of a resource, /<group>/<resource>, without the prefix of the
// backend. The core group is "core".
func ResourcePrefix(resource schema.GroupResource) string {
	group := resource.Group
	if group == "" {
		group = coreGroup
	}
	return "/" + group + "/" + resource.Resource
}

// Kind is the resource that a logical cluster serves under a kind's or resource's name.
type Kind struct {
	// Resource is the requested resource, in a served version.
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
	// Prefix is the key prefix of all objects of the resource, and Identity is the identity of those
	// in the logical cluster.
	Prefix, Identity string
}

// tenant selects the objects of a request. An empty cluster or shard selects all. An empty identity
// selects the objects without one if there is a cluster, and otherwise all.
type tenant struct {
	identity string
	shard    string
	cluster  logicalcluster.Name
}

// tenantFrom returns the tenant of a request for a resource. If sharded, keys have a shard segment, so
// the request must specify a shard.
func tenantFrom(ctx context.Context, resource schema.GroupResource, sharded bool) (tenant, error) {
	cluster, ok := request.ClusterFrom(ctx)
	if !ok {
		return tenant{}, apierrors.NewBadRequest(request.ErrNoCluster.Error())
	}
	if !cluster.Wildcard && !request.ValidClusterName(cluster.Name) {
		return tenant{}, apierrors.NewBadRequest(fmt.Sprintf("invalid name of a logical cluster: %q", cluster.Name))
	}
	if err := request.CheckStorage(ctx, resource); err != nil {
		return tenant{}, apierrors.NewInternalError(err)
	}
	t := tenant{identity: request.IdentityFrom(ctx, resource), cluster: cluster.Name}
	if t.identity != "" && !request.ValidIdentity(t.identity) {
		return tenant{}, apierrors.NewBadRequest(fmt.Sprintf("invalid identity of an API: %q", t.identity))
	}
	shard, ok := request.ShardFrom(ctx)
	switch {
	case ok && !sharded:
		return tenant{}, apierrors.NewInternalError(errors.New("the request names a shard, but this backend has no shard segment in its keys"))
	case !ok && sharded:
		return tenant{}, apierrors.NewBadRequest("no shard in the request: use a URL of the form /shards/<name>/clusters/<name>/…")
	case ok && !shard.Wildcard && !request.ValidName(shard.Name):
		return tenant{}, apierrors.NewBadRequest(fmt.Sprintf("invalid name of a shard: %q", shard.Name))
	case ok:
		t.shard = shard.Name
	}
	return t, nil
}

// keyspace maps the keys of one resource's registry to keys with a tenant.
type keyspace struct {
	// root is the resource's prefix, with a slash at its end.
	root string
	// sharded reports whether a shard segment precedes the cluster.
	sharded bool
}

func newKeyspace(resourcePrefix string, sharded bool) (keyspace, error) {
	root := strings.TrimSuffix(resourcePrefix, "/") + "/"
	if !strings.HasPrefix(root, "/") || root == "/" {
		return keyspace{}, fmt.Errorf("invalid resource prefix %q: it must start with a slash and not be empty", resourcePrefix)
	}
	return keyspace{root: root, sharded: sharded}, nil
}

// prefix returns the key prefix of t, with a slash at its end. It is the resource's prefix if t
// selects one cluster of all shards. Without a cluster and an identity, it includes all identities.
func (k keyspace) prefix(t tenant) string {
	root := k.root
	if t.identity != "" {
		root += identityPrefix + t.identity + "/"
	}
	switch {
	case !k.sharded && t.cluster == "", k.sharded && t.shard == "":
		return root
	case !k.sharded:
		return root + string(t.cluster) + "/"
	case t.cluster == "":
		return root + t.shard + "/"
	default:
		return root + t.shard + "/" + string(t.cluster) + "/"
	}
}

// single reports whether t selects exactly one logical cluster.
func (k keyspace) single(t tenant) bool {
	return t.cluster != "" && (t.shard != "" || !k.sharded)
}

// relative returns the part of a registry's key after the resource's prefix: "<namespace>/<name>", or less.
// Keys of other resources and path traversal are errors. Empty segments are harmless.
func (k keyspace) relative(key string, recursive bool) (string, error) {
	if recursive && key+"/" == k.root {
		return "", nil
	}
	if key == "" || key == "/" {
		return "", apierrors.NewBadRequest(fmt.Sprintf("empty key: %q", key))
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "." || segment == ".." {
			return "", apierrors.NewBadRequest(fmt.Sprintf("invalid key %q: a namespace or name must not be \".\" or \"..\"", key))
		}
	}
	rest, ok := strings.CutPrefix(key, k.root)
	if !ok {
		return "", apierrors.NewInternalError(fmt.Errorf("the key %q lacks resource prefix %q", key, k.root))
	}
	return rest, nil
}

func (k keyspace) object(t tenant, key string) (string, error) {
	rest, err := k.relative(key, false)
	if err != nil {
		return "", err
	}
	return k.prefix(t) + rest, nil
}
