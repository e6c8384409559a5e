package customresource

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// Functions for added sources: names, objects, and documents of several logical clusters.

// Names reserves the names of resources. It is nil if there are no CustomResourceDefinition objects.
func (s *Server) Names() *definitions.Storage { return s.crds }

// System returns the system definition of a resource, or nil.
func (s *Server) System(resource schema.GroupResource) *definitions.Definition {
	return s.system.Of(resource)
}

// PrefixOf returns the prefix of the keys of the objects of a system definition, or "".
func (s *Server) PrefixOf(resource schema.GroupResource) string {
	d := s.system.Of(resource)
	if d == nil {
		return ""
	}
	return s.stores.PrefixOf(d.Schema)
}

// BuiltIn reports whether the server itself provides a resource.
func (s *Server) BuiltIn(ctx context.Context, resource schema.GroupResource) bool {
	return s.system.Of(resource) != nil || s.builtIns.Serves(ctx, resource)
}

// Definition returns the definition of a resource in a logical cluster, and the prefix of the keys of its
// objects. It returns nil if the resource is not served or is built in.
func (s *Server) Definition(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource) (d *definitions.Definition, prefix string, err error) {
	d, err = s.sources.Resolve(ctx, definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: resource.GroupResource(), Version: resource.Version})
	if err != nil || d == nil || !d.Schema.Serves(resource.Version) || !d.Stored() {
		return nil, "", err
	}
	return d, multitenant.Key(s.stores.PrefixOf(d.Schema), d.Identity, cluster, "", ""), nil
}

// Defined reports whether a resource is built in or defined in a logical cluster, so that no added source serves it.
func (s *Server) Defined(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return s.builtIns.Serves(ctx, resource) || s.sources.Defined(cluster, resource)
}

// Empty deletes all objects of a definition in a logical cluster, and returns the remaining ones. It bypasses
// admission but respects finalizers. It ignores built-in resources, because their objects have the same prefix
// but another encoding.
func (s *Server) Empty(ctx context.Context, cluster logicalcluster.Name, d *definitions.Definition) (definitions.Remaining, error) {
	if s.builtIns.Serves(ctx, d.Schema.Resource) {
		return definitions.Remaining{}, nil
	}
	used := s.table.Acquire(d.Schema)
	defer func() { s.table.Release(used, time.Now()) }()
	return s.stores.Empty(request.WithIdentity(request.WithClusterName(ctx, cluster), used.Resource, d.Identity), used)
}

// Each calls visit for each stored object of a definition in a logical cluster.
func (s *Server) Each(ctx context.Context, cluster logicalcluster.Name, d *definitions.Definition, visit func(*packed.Object)) error {
	used := s.table.Acquire(d.Schema)
	defer func() { s.table.Release(used, time.Now()) }()
	return s.stores.Each(request.WithIdentity(request.WithClusterName(ctx, cluster), used.Resource, d.Identity), used, visit)
}

// ServeDocuments serves discovery and OpenAPI documents of some built-in resources and of definitions. It
// reports whether it did; there are no other documents then.
func (s *Server) ServeDocuments(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool {
	all = slices.Clip(all)
	for resource := range resources {
		if d := s.system.Of(resource); d != nil {
			all = append(all, d)
		}
	}
	return s.documents.ServeOnly(w, r, resources, all)
}

// Modify updates an object of a system definition in a logical cluster, see versions.Stores.Modify. The server
// uses it for updates of many similar objects, because it bypasses audit and managed fields.
func (s *Server) Modify(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	d := s.system.Of(resource)
	if d == nil {
		return nil, fmt.Errorf("%s is not served by the system", resource)
	}
	ctx = genericapirequest.WithNamespace(request.WithClusterName(ctx, cluster), metav1.NamespaceNone)
	return s.stores.Modify(ctx, d.Schema, name, change)
}

// Create stores a new object of a system definition in a logical cluster, see versions.Stores.Create.
func (s *Server) Create(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	d := s.system.Of(resource)
	if d == nil {
		return nil, fmt.Errorf("%s is not served by the system", resource)
	}
	ctx = genericapirequest.WithNamespace(request.WithClusterName(ctx, cluster), metav1.NamespaceNone)
	return s.stores.Create(ctx, d.Schema, object)
}

// KindOf returns the resource that a logical cluster serves for a kind, in a served version, or false.
func (s *Server) KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (multitenant.Kind, bool, error) {
	if builtIn, ok, err := s.builtIns.Kind(ctx, kind); ok || err != nil {
		return builtIn, ok, err
	}
	in := request.Cluster{Name: cluster}
	cached, _ := s.plurals.Get(kind.GroupKind())
	plurals, _ := cached.([]string)
	for _, plural := range plurals {
		d, err := s.sources.Resolve(ctx, definitions.Lookup{Cluster: in, Resource: schema.GroupResource{Group: kind.Group, Resource: plural}, Version: kind.Version})
		if err != nil {
			return multitenant.Kind{}, false, err
		}
		if d != nil && isOf(d, kind) {
			return s.kind(d, kind.Version), true, nil
		}
	}
	all, err := s.sources.List(ctx, in)
	if err != nil {
		return multitenant.Kind{}, false, err
	}
	for _, d := range all {
		if isOf(d, kind) {
			recent := plurals[max(0, len(plurals)-3):]
			s.plurals.Add(kind.GroupKind(), append(slices.Clip(recent), d.Schema.Resource.Resource))
			return s.kind(d, kind.Version), true, nil
		}
	}
	return multitenant.Kind{}, false, nil
}

// Served returns the resource that a logical cluster serves, in any version, with the prefix and identity of
// its keys, or false.
func (s *Server) Served(ctx context.Context, cluster logicalcluster.Name, prefix, identity string) (multitenant.Kind, bool, error) {
	if builtIn, ok, err := s.builtIns.OfPrefix(ctx, prefix); ok || err != nil {
		return builtIn, ok && identity == "", err
	}
	group, name, _ := strings.Cut(strings.Trim(prefix, "/"), "/")
	name, suffix, _ := strings.Cut(name, ":")
	resource := schema.GroupResource{Group: group, Resource: name}
	if group == "core" && suffix != "" {
		resource.Group = ""
	}
	d, err := s.sources.Resolve(ctx, definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: resource})
	if err != nil || d == nil || d.Identity != identity || s.stores.PrefixOf(d.Schema) != prefix {
		return multitenant.Kind{}, false, err
	}
	for _, v := range d.Schema.Spec().Versions {
		if v.Served {
			return s.kind(d, v.Name), true, nil
		}
	}
	return multitenant.Kind{}, false, nil
}

// KeysOf returns the prefix of the keys of a resource's objects in a logical cluster or namespace, or false if
// the resource is not stored here.
func (s *Server) KeysOf(ctx context.Context, cluster logicalcluster.Name, namespace string, resource schema.GroupResource) (prefix string, known bool, err error) {
	if s.builtIns.Serves(ctx, resource) {
		return multitenant.Key(documents.KeyPrefix(resource), "", cluster, namespace, ""), true, nil
	}
	d, err := s.sources.Resolve(ctx, definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: resource})
	if err != nil || d == nil || !d.Stored() {
		return "", false, err
	}
	return multitenant.Key(s.stores.PrefixOf(d.Schema), d.Identity, cluster, namespace, ""), true, nil
}

func isOf(d *definitions.Definition, kind schema.GroupVersionKind) bool {
	return d.Schema.Resource.Group == kind.Group && d.Schema.Names().Kind == kind.Kind && d.Schema.Serves(kind.Version) && d.Stored()
}

func (s *Server) kind(d *definitions.Definition, version string) multitenant.Kind {
	return multitenant.Kind{
		Resource:   d.Schema.Resource.WithVersion(version),
		Kind:       d.Schema.Names().Kind,
		Namespaced: d.Schema.Spec().Scope == "Namespaced",
		Prefix:     s.stores.PrefixOf(d.Schema),
		Identity:   d.Identity,
	}
}
