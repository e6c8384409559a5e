package customresource

import (
	"context"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// KindOf returns what a logical cluster serves under a kind, in a version that it serves; false
// if there is nothing.
func (s *Server) KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (multitenant.Kind, bool, error) {
	if builtIn, ok, err := s.builtIns.Kind(ctx, kind); ok || err != nil {
		return multitenant.Kind{Resource: builtIn.Resource, Kind: kind.Kind, Namespaced: builtIn.Namespaced, Prefix: prefixOf(builtIn.Resource)}, ok, err
	}
	in := request.Cluster{Name: cluster}
	for _, plural := range s.plurals.get(kind.GroupKind()) {
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
			s.plurals.add(kind.GroupKind(), d.Schema.Resource.Resource)
			return s.kind(d, kind.Version), true, nil
		}
	}
	return multitenant.Kind{}, false, nil
}

// Served returns what a logical cluster serves of the resource whose keys have a prefix, in any
// version: false if it serves nothing whose objects have such keys.
func (s *Server) Served(ctx context.Context, cluster logicalcluster.Name, prefix, identity string) (multitenant.Kind, bool, error) {
	if builtIn, ok, err := s.builtIns.OfPrefix(ctx, prefix); ok || err != nil {
		return multitenant.Kind{Resource: builtIn.Resource, Kind: builtIn.Kind, Namespaced: builtIn.Namespaced, Prefix: prefix}, ok && identity == "", err
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

// KeysOf returns the prefix of the keys of a resource's objects in a logical cluster, or in one
// namespace of it; false where it is not known where they are.
func (s *Server) KeysOf(ctx context.Context, cluster logicalcluster.Name, namespace string, resource schema.GroupResource) (prefix string, known bool, err error) {
	if s.builtIns.Serves(ctx, resource) {
		return multitenant.Key(prefixOf(resource.WithVersion("")), "", cluster, namespace, ""), true, nil
	}
	d, err := s.sources.Resolve(ctx, definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: resource})
	if err != nil || d == nil || d.Schema.Projection != nil || d.Objects != nil {
		return "", false, err
	}
	return multitenant.Key(s.stores.PrefixOf(d.Schema), d.Identity, cluster, namespace, ""), true, nil
}

func isOf(d *definitions.Definition, kind schema.GroupVersionKind) bool {
	return d.Schema.Resource.Group == kind.Group && d.Schema.Names().Kind == kind.Kind && d.Schema.Serves(kind.Version) && d.Schema.Projection == nil && d.Objects == nil
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

// prefixOf returns the prefix of the keys of a built-in resource. Events of events.k8s.io are
// those of the group "".
func prefixOf(resource schema.GroupVersionResource) string {
	if resource.Group == eventsv1.GroupName {
		resource.Group = ""
	}
	return multitenant.ResourcePrefix(resource.GroupResource()) + "/"
}
