package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// noCluster is the key segment of objects without a logical cluster in the watch cache. It is not a valid name.
	noCluster = "~"

	// identityPrefix is the prefix of an identity's key segment. No logical cluster or shard has such a name.
	identityPrefix = ":"

	coreGroup = "core"
)

// ResourcePrefix returns the key prefix of a resource, /<group>/<resource>, without the prefix of the backend.
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
	// Prefix is the key prefix of all objects, Identity the identity of those in the logical cluster.
	Prefix, Identity string
}

// tenant selects the objects of a request. An empty cluster or shard selects all. An empty identity
// selects the objects without one if there is a cluster, and otherwise all.
type tenant struct {
	identity string
	shard    string
	cluster  logicalcluster.Name
}

// tenantFrom returns the tenant of a request for a resource. If sharded, the request must specify a shard.
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
	root    string
	sharded bool
}

func newKeyspace(resourcePrefix string, sharded bool) (keyspace, error) {
	root := strings.TrimSuffix(resourcePrefix, "/") + "/"
	if !strings.HasPrefix(root, "/") || root == "/" {
		return keyspace{}, fmt.Errorf("invalid resource prefix %q: it must start with a slash and not be empty", resourcePrefix)
	}
	return keyspace{root: root, sharded: sharded}, nil
}

// prefix returns the key prefix of t. It is the resource's prefix if t selects one cluster of all shards.
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

// Annotate sets the annotation kcp.io/cluster and, on the cache server, kcp.io/shard to those of the request. The
// storage annotates each write, also with the identity. Handlers that bypass it, e.g. for dry-run, call Annotate.
func Annotate(ctx context.Context, obj runtime.Object) error {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return err
	}
	shard, _ := request.ShardFrom(ctx)
	return annotate(obj, tenant{shard: shard.Name, cluster: cluster})
}

func annotate(obj runtime.Object, t tenant) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("cannot annotate an object with its logical cluster: %w", err)
	}
	annotations := object.GetAnnotations()
	identity, noted := annotations[request.IdentityAnnotation]
	if annotations[logicalcluster.AnnotationKey] == string(t.cluster) && (t.shard == "" || annotations[request.ShardAnnotation] == t.shard) &&
		identity == t.identity && noted == (t.identity != "") {
		return nil
	}
	// Copy the map, because it may be shared with an object in the watch cache.
	changed := make(map[string]string, len(annotations)+3)
	maps.Copy(changed, annotations)
	changed[logicalcluster.AnnotationKey] = string(t.cluster)
	delete(changed, request.IdentityAnnotation)
	if t.identity != "" {
		changed[request.IdentityAnnotation] = t.identity
	}
	if t.shard != "" {
		changed[request.ShardAnnotation] = t.shard
	}
	object.SetAnnotations(changed)
	return nil
}

// tenantOf returns the tenant in the annotations of an object, if they are valid.
func tenantOf(obj runtime.Object, sharded bool) (t tenant, ok bool) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return tenant{}, false
	}
	annotations := object.GetAnnotations()
	t.cluster = logicalcluster.Name(annotations[logicalcluster.AnnotationKey])
	if !request.ValidClusterName(t.cluster) {
		return tenant{}, false
	}
	if t.identity = annotations[request.IdentityAnnotation]; t.identity != "" && !request.ValidIdentity(t.identity) {
		return tenant{}, false
	}
	if sharded {
		t.shard = annotations[request.ShardAnnotation]
		return t, request.ValidName(t.shard)
	}
	return t, true
}

type dryRunAdmission struct{ *admission.Handler }

// NewDryRunAdmission returns an admission plugin that annotates objects in dry-run requests, because
// registries serve these without the storage. It must be the last mutating plugin.
func NewDryRunAdmission() admission.MutationInterface {
	return dryRunAdmission{admission.NewHandler(admission.Create, admission.Update)}
}

func (dryRunAdmission) Admit(ctx context.Context, attrs admission.Attributes, _ admission.ObjectInterfaces) error {
	if !attrs.IsDryRun() || attrs.GetObject() == nil {
		return nil
	}
	switch attrs.GetSubresource() {
	case "", "status", "finalize":
		return Annotate(ctx, attrs.GetObject())
	default: // the object is of another kind, e.g. a scale or a token
		return nil
	}
}
