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
	// GroupVersion is the version that is served and stored.
	GroupVersion schema.GroupVersion
	// Resources are the resources of the group.
	Resources []Definition
	// AddToScheme adds what the resources cannot say, such as conversions
	// and kinds of subresources; optional.
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

// Builder makes the storages of groups. It builds each resource once, also
// when a View shows it in a second group.
type Builder struct {
	// Scheme must have all groups registered.
	Scheme *runtime.Scheme
	// RESTOptions says how and where resources are stored.
	RESTOptions generic.RESTOptionsGetter

	storages map[Definition]map[string]rest.Storage
	groups   map[Definition][]string
}

// Build returns the storages of each group, in the order of groups, by path.
// When it fails it leaves nothing behind.
func (b *Builder) Build(groups []Group) (_ []map[string]rest.Storage, err error) {
	b.storages = map[Definition]map[string]rest.Storage{}
	b.groups = shownIn(groups)
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
					return nil, fmt.Errorf("two resources of %s claim the path %q: give one another name", group.GroupVersion, path)
				}
				paths[path] = storage
			}
		}
		out = append(out, paths)
	}
	return out, nil
}

// built returns the storages of a resource that was built before.
func (b *Builder) built(definition Definition) (map[string]rest.Storage, error) {
	storages, ok := b.storages[definition]
	if !ok {
		return nil, errors.New("a view was built before the resource it shows: list the resource's group first")
	}
	return storages, nil
}

// Destroy destroys every storage that was built. A server that has installed
// the storages does this itself; destroying one twice is harmless.
func (b *Builder) Destroy() {
	for _, storages := range b.storages {
		for _, storage := range storages {
			storage.Destroy()
		}
	}
}

// versions returns the API versions that show a resource.
func (b *Builder) versions(definition Definition) []string { return b.groups[definition] }

// viewer is a definition that shows another one.
type viewer interface{ shows() Definition }

func (v *Alternate[T]) shows() Definition { return v.Of }

// shownIn returns, for each resource, the API versions that show it.
func shownIn(groups []Group) map[Definition][]string {
	out := map[Definition][]string{}
	for _, group := range groups {
		for _, definition := range group.Resources {
			if v, ok := definition.(viewer); ok {
				definition = v.shows()
			}
			out[definition] = append(out[definition], group.GroupVersion.String())
		}
	}
	return out
}
