package resource

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Group is one version of an API group with its resources.
type Group struct {
	// GroupVersion is the served and stored version.
	GroupVersion schema.GroupVersion
	Resources    []Definition
	// AddToScheme adds types that the resources do not define, e.g. conversions and kinds of subresources. It is optional.
	AddToScheme func(*runtime.Scheme) error
}

// Register adds the types of the group to the scheme.
func (g Group) Register(scheme *runtime.Scheme) error {
	metav1.AddToGroupVersion(scheme, g.GroupVersion)
	errs := make([]error, 0, len(g.Resources)+2)
	for _, definition := range g.Resources {
		errs = append(errs, definition.register(scheme, g.GroupVersion))
	}
	if g.AddToScheme != nil {
		errs = append(errs, g.AddToScheme(scheme))
	}
	errs = append(errs, scheme.SetVersionPriority(g.GroupVersion))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("registering %s: %w", g.GroupVersion, err)
	}
	return nil
}

// Builder creates the storages of groups. It builds each resource once, even if an Alternate serves it in a second group.
type Builder struct {
	// Scheme must contain all groups.
	Scheme *runtime.Scheme
	// RESTOptions configures the storage.
	RESTOptions generic.RESTOptionsGetter

	storages map[Definition]map[string]rest.Storage
	// groups are the API versions that serve each resource.
	groups map[Definition][]string
}

// Build returns the storages of each group by path, in the order of groups. If it fails, it destroys all storages.
func (b *Builder) Build(groups []Group) (_ []map[string]rest.Storage, err error) {
	b.storages = map[Definition]map[string]rest.Storage{}
	b.groups = servedIn(groups)
	defer func() {
		if err != nil {
			b.Destroy()
		}
	}()
	out := make([]map[string]rest.Storage, 0, len(groups))
	for _, group := range groups {
		paths := map[string]rest.Storage{}
		for _, definition := range group.Resources {
			storages, err := definition.storage(b, group.GroupVersion)
			if err != nil {
				return nil, err
			}
			b.storages[definition] = storages
			for path, storage := range storages {
				if _, exists := paths[path]; exists {
					return nil, fmt.Errorf("two resources of %s have the path %q: rename one of them", group.GroupVersion, path)
				}
				paths[path] = storage
			}
		}
		out = append(out, paths)
	}
	return out, nil
}

// Destroy destroys all storages. It is not needed if a server has installed the storages, but it may be called repeatedly.
func (b *Builder) Destroy() {
	for _, storages := range b.storages {
		for _, storage := range storages {
			storage.Destroy()
		}
	}
}

// servedIn returns the API versions that serve each resource.
func servedIn(groups []Group) map[Definition][]string {
	out := map[Definition][]string{}
	for _, group := range groups {
		for _, definition := range group.Resources {
			if alternate, ok := definition.(interface{ of() Definition }); ok {
				definition = alternate.of()
			}
			out[definition] = append(out[definition], group.GroupVersion.String())
		}
	}
	return out
}
