package definitions

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

// Definition is a custom resource as it is served in one logical cluster, or
// to a wildcard.
type Definition struct {
	// Schema says how the resource is served.
	Schema *Schema
	// Terminating forbids creation while the definition is being deleted.
	Terminating bool
	// MetadataOnly restricts a wildcard to PartialObjectMetadata, because the
	// logical clusters may have conflicting schemas.
	MetadataOnly bool
}

// Lookup names a custom resource of a request.
type Lookup struct {
	// Cluster is the logical cluster, or the wildcard.
	Cluster request.Cluster
	// Resource is the group and resource name.
	Resource schema.GroupResource
	// Version is the API version of the request.
	Version string
	// Identity is what follows the colon in a wildcard's resource segment.
	Identity string
}

// Change says that a definition is served differently from before, or no more.
type Change struct {
	Cluster  logicalcluster.Name
	Resource schema.GroupResource
	// Gone is set if the definition is no longer served.
	Gone bool
}

// Source says which custom resources are served where. It is the seam for
// APIs that come from elsewhere than CustomResourceDefinition objects.
//
// A Source hands out schemas that it holds itself for as long as the
// definition exists; the server takes a reference of its own while it serves
// a request.
type Source interface {
	// Resolve returns the definition for a request, or nil where there is none.
	Resolve(ctx context.Context, l Lookup) (*Definition, error)
	// List returns all definitions of a logical cluster, for discovery.
	List(ctx context.Context, cluster request.Cluster) ([]*Definition, error)
	// Subscribe has f called after every change of a definition that was served.
	// f does not block; it must be given before the source runs.
	Subscribe(f func(Change))
}

// Sources asks its sources in order; the first that has a resource wins.
type Sources []Source

// Resolve implements Source.
func (c Sources) Resolve(ctx context.Context, l Lookup) (*Definition, error) {
	for _, source := range c {
		if d, err := source.Resolve(ctx, l); d != nil || err != nil {
			return d, err
		}
	}
	return nil, nil
}

// List implements Source.
func (c Sources) List(ctx context.Context, cluster request.Cluster) ([]*Definition, error) {
	var all []*Definition
	taken := map[schema.GroupResource]bool{}
	for _, source := range c {
		definitions, err := source.List(ctx, cluster)
		if err != nil {
			return nil, err
		}
		for _, d := range definitions {
			if !taken[d.Schema.Resource] {
				taken[d.Schema.Resource] = true
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// Subscribe implements Source.
func (c Sources) Subscribe(f func(Change)) {
	for _, source := range c {
		source.Subscribe(f)
	}
}

// System serves a fixed set of definitions in every logical cluster and,
// with full content, to the wildcard.
type System struct {
	definitions []*Definition
	byResource  map[schema.GroupResource]*Definition
}

// NewSystem makes the source of definitions, each of which is given once.
func NewSystem(table *Table, crds []*apiextensionsv1.CustomResourceDefinition) (*System, error) {
	s := &System{byResource: map[schema.GroupResource]*Definition{}}
	for _, crd := range crds {
		crd = crd.DeepCopy()
		apiextensionsserver.Scheme.Default(crd)
		sch, err := table.intern(hashInput{Spec: &crd.Spec, Names: &crd.Spec.Names})
		if err != nil {
			return nil, fmt.Errorf("system definition %s: %w", crd.Name, err)
		}
		if _, ok := s.byResource[sch.Resource]; ok {
			return nil, fmt.Errorf("system definition %s is given twice", crd.Name)
		}
		d := &Definition{Schema: sch}
		s.definitions = append(s.definitions, d)
		s.byResource[sch.Resource] = d
	}
	return s, nil
}

// Has reports whether the set has a resource.
func (s *System) Has(resource schema.GroupResource) bool { return s.byResource[resource] != nil }

// Resolve implements Source.
func (s *System) Resolve(_ context.Context, l Lookup) (*Definition, error) {
	if l.Identity != "" {
		return nil, nil
	}
	return s.byResource[l.Resource], nil
}

// List implements Source.
func (s *System) List(context.Context, request.Cluster) ([]*Definition, error) {
	return s.definitions, nil
}

// Subscribe implements Source; nothing ever changes.
func (s *System) Subscribe(func(Change)) {}
