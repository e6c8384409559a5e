package definitions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/request"
	storageclaims "github.com/shardplane/shardplane/pkg/storage/claims"
)

// Definition is a custom resource as served in one logical cluster, or to wildcard requests.
type Definition struct {
	Schema *Schema
	// Identity separates APIs of the same resource, because it is part of the storage keys of their objects
	// (request.ValidIdentity). It is empty for CustomResourceDefinitions and system definitions.
	Identity string
	// Terminating forbids creation while the definition is being deleted.
	Terminating bool
	// MetadataOnly restricts wildcard requests to PartialObjectMetadata, because the schemas of logical
	// clusters may conflict.
	MetadataOnly bool
	// Provider is the logical cluster that exports the resource. Its webhooks and policies apply to
	// writes; empty if it is the same one.
	Provider logicalcluster.Name
	// Owner describes the source of the resource in messages, e.g. the kind and name of an object. It is empty
	// for system definitions and CustomResourceDefinitions.
	Owner string
	// Only restricts reads to some objects of the identity; nil does not.
	Only *storageclaims.Set
	// Objects, if set, serves read-only objects that are stored elsewhere.
	Objects Objects
	// Verbs, if set, are the served verbs, for discovery.
	Verbs *Verbs
}

// Stored reports whether this server stores the objects under the name of the resource.
func (d *Definition) Stored() bool { return d.Schema.Projection == nil && d.Objects == nil }

// Objects serves objects that this server does not store. Its methods may be called concurrently.
type Objects interface {
	// In returns a reader of the objects in a version of a schema, in one logical cluster or in all. The error
	// is an API status.
	In(ctx context.Context, cluster request.Cluster, sch *Schema, version string) (Reader, error)
}

// Reader serves objects to upstream's handlers.
type Reader interface {
	rest.Getter
	rest.Lister
	rest.Watcher
}

// Lookup identifies the custom resource of a request.
type Lookup struct {
	Cluster  request.Cluster
	Resource schema.GroupResource
	Version  string
	// Identity is the suffix after the colon of a wildcard request's resource, or the identity of a virtual
	// workspace's objects.
	Identity string
	// Exported uses the schema of an export if nothing is bound.
	Exported bool
}

// Change describes a schema that a source serves no longer, or with another schema in its place.
type Change struct {
	// Schema is the previous schema. It is nil if a source was added or removed, because any schema may have
	// changed then.
	Schema   *Schema
	Identity string
	// Cluster is the affected logical cluster or the wildcard; the zero value stands for all in which the
	// source served the schema.
	Cluster request.Cluster
	// Removed is set if nothing is served in its place.
	Removed bool
}

// Source provides definitions, e.g. of bound APIs. It keeps its schemas for as long as the definition exists.
// Methods may be called concurrently.
type Source interface {
	// Resolve returns the definition for a request, or nil.
	Resolve(ctx context.Context, l Lookup) (*Definition, error)
	// Read is called if no source resolves a request. It reads from storage, because another server of the
	// shard may have just written a definition. It returns nil if no other server writes to the source.
	Read(ctx context.Context, l Lookup) (*Definition, error)
	// List returns all definitions of a logical cluster, for discovery.
	List(ctx context.Context, cluster request.Cluster) ([]*Definition, error)
	// Subscribe calls f for every change, after Resolve returns the new state, until stop is called. A schema
	// that is served in many logical clusters may be reported once. f must not block.
	Subscribe(f func(Change)) (stop func())
}

// System serves a fixed set of definitions in every logical cluster, except those that must be bound, and with
// full content to wildcard requests. Their names are in use everywhere.
type System struct {
	definitions []*Definition
	byResource  map[schema.GroupResource]*Definition
	identity    func(ctx context.Context, resource schema.GroupResource) (string, error)
	bound       func(cluster logicalcluster.Name, resource schema.GroupResource) bool
}

// NewSystem returns a source for the definitions, which must be unique. convert replaces conversions. identity may
// return another name for wildcards and virtual workspaces, and bound reports whether a resource must be bound. All
// three may be nil.
func NewSystem(
	table *Table, crds []*apiextensionsv1.CustomResourceDefinition, convert map[schema.GroupResource]Convert,
	identity func(ctx context.Context, resource schema.GroupResource) (string, error),
	bound func(cluster logicalcluster.Name, resource schema.GroupResource) bool,
) (*System, error) {
	s := &System{byResource: map[schema.GroupResource]*Definition{}, identity: identity, bound: bound}
	for _, crd := range crds {
		crd = crd.DeepCopy()
		apiextensionsserver.Scheme.Default(crd)
		resource := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
		sch, err := table.intern(hashInput{Spec: &crd.Spec, Names: &crd.Spec.Names, convert: convert[resource]})
		if err != nil {
			return nil, fmt.Errorf("system definition %s: %w", crd.Name, err)
		}
		if _, ok := s.byResource[sch.Resource]; ok {
			return nil, fmt.Errorf("system definition %s is specified twice", crd.Name)
		}
		d := &Definition{Schema: sch}
		s.definitions = append(s.definitions, d)
		s.byResource[sch.Resource] = d
	}
	return s, nil
}

// Of returns the definition of a resource, or nil.
func (s *System) Of(resource schema.GroupResource) *Definition { return s.byResource[resource] }

// Serves reports whether the set contains a schema.
func (s *System) Serves(sch *Schema) bool {
	d := s.byResource[sch.Resource]
	return d != nil && d.Schema.Hash == sch.Hash
}

// in returns the definition of a resource in a logical cluster, or nil if it must be bound.
func (s *System) in(cluster logicalcluster.Name, resource schema.GroupResource) *Definition {
	d := s.byResource[resource]
	if d != nil && s.bound != nil && s.bound(cluster, resource) {
		return nil
	}
	return d
}

func (s *System) list(cluster request.Cluster) []*Definition {
	if cluster.Wildcard || s.bound == nil {
		return s.definitions
	}
	return slices.DeleteFunc(slices.Clone(s.definitions), func(d *Definition) bool { return s.bound(cluster.Name, d.Schema.Resource) })
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

// Verbs restricts the served verbs of a resource. Discovery lists them.
type Verbs struct {
	Object []string // of the objects
	// Status is set if the status subresource is served. Other subresources are not.
	Status bool
}

func (v *Verbs) String() string {
	all := strings.Join(v.Object, ",")
	if v.Status {
		all += ",status"
	}
	return all
}

type served struct {
	resource schema.GroupResource
	verbs    *Verbs
}

type servedKey struct{}

// WithVerbs returns a context for a request to a virtual workspace that serves a resource with these verbs
// only. The virtual workspace must reject others with 405 Method Not Allowed itself.
func WithVerbs(ctx context.Context, resource schema.GroupResource, verbs Verbs) context.Context {
	return context.WithValue(ctx, servedKey{}, served{resource, &verbs})
}

// Limited returns the definitions with the verbs of WithVerbs, without changing all.
func Limited(ctx context.Context, all []*Definition) []*Definition {
	limit, ok := ctx.Value(servedKey{}).(served)
	if !ok {
		return all
	}
	limited := make([]*Definition, 0, len(all))
	for _, d := range all {
		if d.Schema.Resource == limit.resource {
			copied := *d
			copied.Verbs, d = limit.verbs, &copied
		}
		limited = append(limited, d)
	}
	return limited
}

// Listeners are functions to be notified. The zero value is empty. Methods may be called concurrently.
type Listeners[T any] struct {
	mu  sync.Mutex
	all []*func(T)
}

// Add adds a listener, until remove is called.
func (l *Listeners[T]) Add(f func(T)) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(slices.Clip(l.all), &f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(other *func(T)) bool { return other == &f })
	}
}

// Notify calls all listeners one after the other.
func (l *Listeners[T]) Notify(event T) {
	l.mu.Lock()
	all := l.all
	l.mu.Unlock()
	for _, f := range all {
		(*f)(event)
	}
}
