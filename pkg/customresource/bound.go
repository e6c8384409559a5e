package customresource

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// What whoever adds a source needs besides: names, an end of what it served, and
// documents of what can be seen of several logical clusters.

// Reserve keeps names in a logical cluster for an owner whom source is to serve, as
// definitions.Storage does. The server must have CustomResourceDefinitions.
func (s *Server) Reserve(ctx context.Context, cluster logicalcluster.Name, owner string, source definitions.Source, wanted []definitions.Wanted) (release func(), conflict *definitions.Conflict, err error) {
	return s.crds.Reserve(ctx, cluster, owner, source, wanted)
}

// Defines reports whether a logical cluster is known to define something of a group itself.
func (s *Server) Defines(cluster logicalcluster.Name, group string) bool {
	return s.crds.Defines(cluster, group)
}

// Yield has definitions yield that have names of a source, as definitions.Storage does.
func (s *Server) Yield(ctx context.Context, cluster logicalcluster.Name, wanted []definitions.Wanted) error {
	return s.crds.Yield(ctx, cluster, wanted)
}

// FollowNames has f told where names may have become free, as definitions.Storage does.
func (s *Server) FollowNames(f func(cluster logicalcluster.Name, group string)) (stop func()) {
	return s.crds.FollowNames(f)
}

// System returns how the system serves a resource, where it does, or nil if it never does.
func (s *Server) System(resource schema.GroupResource) *definitions.Definition {
	return s.system.Of(resource)
}

// PrefixOf returns the prefix of the keys of the objects of a resource that the system defines, or "".
func (s *Server) PrefixOf(resource schema.GroupResource) string {
	d := s.system.Of(resource)
	if d == nil {
		return ""
	}
	return s.stores.PrefixOf(d.Schema)
}

// BuiltIn reports whether a resource is one of the server itself, which no logical cluster
// defines.
func (s *Server) BuiltIn(ctx context.Context, resource schema.GroupResource) bool {
	return s.system.Has(resource) || s.builtIns.Serves(ctx, resource)
}

// Definition returns how a logical cluster serves a resource that is not built in, or nil if it
// does not serve that, and the prefix of the keys of its objects there.
func (s *Server) Definition(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource) (d *definitions.Definition, prefix string, err error) {
	d, err = s.sources.Resolve(ctx, definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: resource.GroupResource(), Version: resource.Version})
	if err != nil || d == nil || !d.Schema.Serves(resource.Version) || d.Schema.Projection != nil || d.Objects != nil {
		return nil, "", err
	}
	return d, multitenant.Key(s.stores.PrefixOf(d.Schema), d.Identity, cluster, "", ""), nil
}

// Defined reports whether a resource is known to be built in, or defined in a logical
// cluster, so that no source that was added serves it.
func (s *Server) Defined(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return s.builtIns.Serves(ctx, resource) || s.sources.Defined(cluster, resource)
}

// Empty deletes all objects of a definition in a logical cluster, past admission but
// through their finalizers, and returns what is left. There are none of a built-in resource,
// whose objects have the same prefix and another encoding.
func (s *Server) Empty(ctx context.Context, cluster logicalcluster.Name, d *definitions.Definition) (definitions.Remaining, error) {
	if s.builtIns.Serves(ctx, d.Schema.Resource) {
		return definitions.Remaining{}, nil
	}
	used := s.table.Acquire(d.Schema)
	defer func() { s.table.Release(used, time.Now()) }()
	return s.stores.Empty(request.WithIdentity(request.WithClusterName(ctx, cluster), used.Resource, d.Identity), used)
}

// Each calls visit for each object of a definition in a logical cluster, as it is stored.
func (s *Server) Each(ctx context.Context, cluster logicalcluster.Name, d *definitions.Definition, visit func(*packed.Object)) error {
	used := s.table.Acquire(d.Schema)
	defer func() { s.table.Release(used, time.Now()) }()
	return s.stores.Each(request.WithIdentity(request.WithClusterName(ctx, cluster), used.Resource, d.Identity), used, visit)
}

// ServeDocuments answers a request for discovery or OpenAPI that is to tell of some of the
// resources that every logical cluster has, and of definitions, and of nothing else. It
// reports whether it did: there is no other document then.
func (s *Server) ServeDocuments(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool {
	all = slices.Clip(all)
	for resource := range resources {
		if d := s.system.Of(resource); d != nil {
			all = append(all, d)
		}
	}
	return s.documents.ServeOnly(w, r, resources, all)
}

// Modify lets change edit an object of a system definition in a logical cluster, in the
// version in which it is stored, and returns it as it is stored then: past admission,
// validation, audit and the managers of fields. It is for what the server itself writes in
// many objects alike. If others write the object at the same time, change is called again;
// what its error is, Modify returns.
func (s *Server) Modify(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	d := s.system.Of(resource)
	if d == nil {
		return nil, fmt.Errorf("%s is not served by the system", resource)
	}
	ctx = genericapirequest.WithNamespace(request.WithClusterName(ctx, cluster), metav1.NamespaceNone)
	return s.stores.Modify(ctx, d.Schema, name, change)
}

// Create stores a new object of a system definition in a logical cluster as it is, with its
// status and finalizers: past admission, validation, audit and the managers of fields. It is
// given, and returned, in the version in which it is stored. It is for what the server itself
// makes in many logical clusters alike. The error is AlreadyExists if there is one of the name.
func (s *Server) Create(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	d := s.system.Of(resource)
	if d == nil {
		return nil, fmt.Errorf("%s is not served by the system", resource)
	}
	ctx = genericapirequest.WithNamespace(request.WithClusterName(ctx, cluster), metav1.NamespaceNone)
	return s.stores.Create(ctx, d.Schema, object)
}
