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
	// nowhere is the key segment of objects without a logical cluster in the
	// watch cache. It can never be a name, so that only wildcard readers see
	// such objects.
	nowhere = "~"

	// identityMark starts the key segment of an identity. No name of a logical
	// cluster or shard starts with it.
	identityMark = ":"

	// coreGroup stands for the empty API group in keys.
	coreGroup = "core"
)

// ResourcePrefix returns the key prefix of a resource, without the prefix of
// the backend: /<group>/<resource>, where the core group is called "core".
func ResourcePrefix(resource schema.GroupResource) string {
	group := resource.Group
	if group == "" {
		group = coreGroup
	}
	return "/" + group + "/" + resource.Resource
}

// Kind is what a logical cluster serves under the name of a kind or of a resource, and where its
// objects are stored.
type Kind struct {
	// Resource is what requests name, in a version that is served.
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
	// Prefix is that of the keys of all objects of the resource, and Identity is that of
	// those in the logical cluster.
	Prefix, Identity string
}

// tenant is whose objects a request is for. An empty field stands for all, and an
// empty identity in one logical cluster for objects that have none.
type tenant struct {
	identity string
	shard    string
	cluster  logicalcluster.Name
}

// tenantFrom returns the tenant of a request for a resource. sharded reports whether
// keys have a shard segment, in which case the request must say which shard.
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

// keyspace maps the keys that the registry of one resource makes to keys with
// a tenant.
type keyspace struct {
	// root is the resource's prefix, with a slash at its end.
	root string
	// sharded reports whether a shard segment comes before the cluster.
	sharded bool
}

func newKeyspace(resourcePrefix string, sharded bool) (keyspace, error) {
	root := strings.TrimSuffix(resourcePrefix, "/") + "/"
	if !strings.HasPrefix(root, "/") || root == "/" {
		return keyspace{}, fmt.Errorf("invalid resource prefix %q: it must start with a slash and not be empty", resourcePrefix)
	}
	return keyspace{root: root, sharded: sharded}, nil
}

// prefix returns the prefix of all objects of t, with a slash at its end.
// Where t is for all shards but one cluster, it is that of all objects. What is for
// all logical clusters and no identity is for objects of all identities.
func (k keyspace) prefix(t tenant) string {
	root := k.root
	if t.identity != "" {
		root += identityMark + t.identity + "/"
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

// single reports whether t is exactly one tenant.
func (k keyspace) single(t tenant) bool {
	return t.cluster != "" && (t.shard != "" || !k.sharded)
}

// relative returns what follows the resource's prefix in a key of the
// registry: "<namespace>/<name>", or less. A segment that leads elsewhere is
// an error, and so is a key of another resource. Empty segments are no
// concern: they name nothing.
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

// object returns the key of one object of t.
func (k keyspace) object(t tenant, key string) (string, error) {
	rest, err := k.relative(key, false)
	if err != nil {
		return "", err
	}
	return k.prefix(t) + rest, nil
}
