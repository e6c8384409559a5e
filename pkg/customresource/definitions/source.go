package definitions

import (
	"context"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/request"
	storageclaims "github.com/shardplane/shardplane/pkg/storage/claims"
)

// Definition is a custom resource as it is served in one logical cluster, or
// to a wildcard.
type Definition struct {
	// Schema says how the resource is served.
	Schema *Schema
	// Identity tells APIs of the same resource apart, whose objects must not be
	// mixed: it is a part of their storage keys (request.ValidIdentity). It is empty
	// for CustomResourceDefinitions and system definitions.
	Identity string
	// Terminating forbids creation while the definition is being deleted.
	Terminating bool
	// MetadataOnly restricts a wildcard to PartialObjectMetadata, because the
	// logical clusters may have conflicting schemas.
	MetadataOnly bool
	// Provider is the logical cluster that defines it for others, whose webhooks and
	// policies judge what is written; empty if it is their own.
	Provider logicalcluster.Name
	// Owner says in messages what has the resource served, such as the kind and name
	// of an object. It is empty for system definitions and CustomResourceDefinitions.
	Owner string
	// Only restricts reads to some of the objects, of the same identity; nil does not.
	Only *storageclaims.Set
	// Objects, if set, are the objects, which are not stored here then, to be read only.
	Objects Objects
	// Verbs, if set, are the verbs that are served, for discovery.
	Verbs *Verbs
}

// Objects are objects of a resource that this server does not store. Its methods may be called
// at the same time.
type Objects interface {
	// In returns what reads them in a version of a schema, in one logical cluster or in all. The
	// error is an API status.
	In(ctx context.Context, cluster request.Cluster, sch *Schema, version string) (Reader, error)
}

// Reader serves objects to upstream's handlers.
type Reader interface {
	rest.Getter
	rest.Lister
	rest.Watcher
}

// Lookup names a custom resource of a request.
type Lookup struct {
	// Cluster is the logical cluster, or the wildcard.
	Cluster request.Cluster
	// Resource is the group and resource name.
	Resource schema.GroupResource
	// Version is the API version of the request.
	Version string
	// Identity is what follows the colon in a wildcard's resource segment, or that of the
	// objects that a view is of, in one logical cluster or in all.
	Identity string
	// Exported has, where nothing is bound, the schema of an export answer.
	Exported bool
}

// Change says that a schema which a source served is not served as before: what
// it served under it is served with another, or no more.
type Change struct {
	// Schema is the one that was served. It is nil if a source came or went:
	// anything may be served differently then.
	Schema *Schema
	// Identity is the one under which the schema was served.
	Identity string
	// Cluster is the one logical cluster, or the wildcard, in which that is so;
	// the zero value stands for all in which the source served the schema.
	Cluster request.Cluster
	// Gone is set if nothing is served in its place.
	Removed bool
}

// Source says which custom resources are served where. It is the seam for
// APIs that come from elsewhere than CustomResourceDefinition objects.
//
// A Source hands out schemas that it holds itself for as long as the
// definition exists; the server takes a reference of its own while it serves
// a request. Its methods may be called at the same time.
type Source interface {
	// Resolve returns the definition for a request, or nil where there is none.
	Resolve(ctx context.Context, l Lookup) (*Definition, error)
	// Read is Resolve for what no source knows: it asks storage, where another server
	// of the shard may just have written what this one has not heard of. A source that
	// nobody else writes to has nothing to add.
	Read(ctx context.Context, l Lookup) (*Definition, error)
	// List returns all definitions of a logical cluster, for discovery.
	List(ctx context.Context, cluster request.Cluster) ([]*Definition, error)
	// Subscribe has f told of every change of what was served, once Resolve
	// answers accordingly, until stop is called. A schema that is served in many
	// logical clusters is told of once. f does not block.
	Subscribe(f func(Change)) (stop func())
}

// System serves a fixed set of definitions in every logical cluster, but for those that it
// has only because it binds them, which another source serves, and, with full content, to
// the wildcard. All names of the set are in use everywhere.
type System struct {
	definitions []*Definition
	byResource  map[schema.GroupResource]*Definition
	identity    func(ctx context.Context, resource schema.GroupResource) (string, error)
	bound       func(cluster logicalcluster.Name, resource schema.GroupResource) bool
}

// NewSystem makes the source of definitions, each of which is given once. identity returns
// the identity by which wildcards and views know a resource, too, or "". bound reports
// whether a logical cluster has a resource only if it binds it. Both may be nil.
func NewSystem(
	table *Table, crds []*apiextensionsv1.CustomResourceDefinition,
	identity func(ctx context.Context, resource schema.GroupResource) (string, error),
	bound func(cluster logicalcluster.Name, resource schema.GroupResource) bool,
) (*System, error) {
	s := &System{byResource: map[schema.GroupResource]*Definition{}, identity: identity, bound: bound}
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

// Of returns the definition of a resource, or nil if the set does not have it.
func (s *System) Of(resource schema.GroupResource) *Definition { return s.byResource[resource] }

// Serves reports whether a schema is one of the set.
func (s *System) Serves(sch *Schema) bool {
	d := s.byResource[sch.Resource]
	return d != nil && d.Schema.Hash == sch.Hash
}

// in returns the definition of a resource in a logical cluster that has it in any case, or
// nil.
func (s *System) in(cluster logicalcluster.Name, resource schema.GroupResource) *Definition {
	d := s.byResource[resource]
	if d != nil && s.bound != nil && s.bound(cluster, resource) {
		return nil
	}
	return d
}

// list returns the definitions of a logical cluster, or the wildcard.
func (s *System) list(cluster request.Cluster) []*Definition {
	if cluster.Wildcard || s.bound == nil {
		return s.definitions
	}
	all := make([]*Definition, 0, len(s.definitions))
	for _, d := range s.definitions {
		if !s.bound(cluster.Name, d.Schema.Resource) {
			all = append(all, d)
		}
	}
	return all
}

func (s *System) resolve(ctx context.Context, l Lookup) (*Definition, error) {
	d := s.byResource[l.Resource]
	if !l.Cluster.Wildcard {
		d = s.in(l.Cluster.Name, l.Resource)
	}
	if d == nil || l.Identity == "" {
		return d, nil
	}
	if s.identity == nil {
		return nil, nil
	}
	identity, err := s.identity(ctx, l.Resource)
	if err != nil || identity != l.Identity {
		return nil, err
	}
	return d, nil
}

// Verbs is what is served of a resource if that is not all. Discovery lists it.
type Verbs struct {
	// Object are the verbs of the objects.
	Object []string
	// Status is set if the subresource status is served as usual. Other subresources are not served.
	Status bool
}

func (v *Verbs) String() string {
	all := strings.Join(v.Object, ",")
	if v.Status {
		all += ",status"
	}
	return all
}
