package bindings

import (
	"context"
	"slices"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// Reach is what requests for a resource reach through the view of an export.
type Reach struct {
	// Resource is the resource as it is stored.
	Resource schema.GroupResource
	// Identity is that by which exports name the objects; empty for those that no export defines.
	Identity string
	// Stored is the identity in the keys of the objects, which those of the system do not have.
	Stored string
	// Set is what they are restricted to; nil for the export's own resources.
	Set *claims.Set
}

// Own reports whether the resource is one that the export offers.
func (r *Reach) Own() bool { return r.Set == nil }

// Reach returns what requests with a verb for a resource reach through the view of an
// export: in one logical cluster, or in all of the shard. It is nil where they reach
// nothing: the export neither offers nor claims the resource, or no binding in the one
// logical cluster lets it.
func (x *Index) Reach(ctx context.Context, key client.Key, in request.Cluster, resource schema.GroupResource, verb string) (*Reach, error) {
	if err := x.waitSynced(ctx); err != nil {
		return nil, err
	}
	export, err := x.Export(ctx, key)
	if export == nil || err != nil {
		return nil, err
	}
	if offers(export, resource) {
		return x.reachOwn(key, export, in, resource)
	}
	w, claims := claimedBy(export, resource, verb)
	if !claims {
		return nil, nil //nolint:nilnil // it does not ask for it
	}
	if !in.Wildcard && !letsIn(x.records(in.Name), key, w, verb).Held() {
		return nil, nil //nolint:nilnil // nobody lets it
	}
	stored, err := x.config.storedUnder(w)
	if err != nil {
		return nil, err
	}
	return &Reach{Resource: w.resource, Identity: w.identity, Stored: stored, Set: x.setOf(key, setKey{identified: w, stored: stored, verb: verb})}, nil
}

// reachOwn is Reach for a resource that the export offers. Without an identity it reaches
// nothing: objects without one are those of everybody else.
func (x *Index) reachOwn(key client.Key, export *apisv1alpha2.APIExport, in request.Cluster, resource schema.GroupResource) (*Reach, error) {
	identity := ""
	if in.Wildcard {
		identity = export.Status.IdentityHash
	}
	for _, r := range x.records(in.Name) {
		if b, bound := r.byResource[resource]; bound && r.of(key) {
			identity = b.identity
		}
	}
	if identity == "" {
		return nil, nil //nolint:nilnil // nobody has bound it
	}
	stored, err := x.config.storedUnder(identified{resource, identity})
	if err != nil {
		return nil, err
	}
	return &Reach{Resource: storedAs(resource), Identity: identity, Stored: stored}, nil
}

// offers reports whether a resource is one of the export's that are stored as custom
// resources.
func offers(export *apisv1alpha2.APIExport, resource schema.GroupResource) bool {
	return slices.ContainsFunc(export.Spec.Resources, func(r apisv1alpha2.ResourceSchema) bool {
		return r.Group == resource.Group && r.Name == resource.Resource && storedHere(&r)
	})
}

// Virtual returns how a resource is served that an export offers by virtual storage, in one logical cluster
// or in all of the shard. It is nil for other resources, and if no binding in the one logical cluster has it.
func (x *Index) Virtual(ctx context.Context, key client.Key, in request.Cluster, resource schema.GroupResource) (*definitions.Definition, error) {
	if err := x.waitSynced(ctx); err != nil {
		return nil, err
	}
	export, err := x.Export(ctx, key)
	if export == nil || err != nil {
		return nil, err
	}
	bound := in.Wildcard || slices.ContainsFunc(x.records(in.Name), func(r *record) bool {
		return r.of(key) && r.byResource[resource].virtual
	})
	for i := range export.Spec.Resources {
		r := &export.Spec.Resources[i]
		if bound && !storedHere(r) && r.Group == resource.Group && r.Name == resource.Resource {
			return x.virtual(ctx, key, export, r)
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

func (x *Index) virtual(ctx context.Context, key client.Key, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*definitions.Definition, error) {
	s, err := x.schemaOf(ctx, export, r)
	if s == nil || err != nil || x.config.Virtual == nil {
		return nil, err
	}
	return &definitions.Definition{Schema: s.Schema, Identity: export.Status.IdentityHash, Objects: x.config.Virtual(key, s.Schema.Resource)}, nil
}

// ReadsBindingsOnly reports whether an export has no permission claim on APIBindings, so that it reads its own
// and writes none.
func ReadsBindingsOnly(export *apisv1alpha2.APIExport) bool {
	return !slices.ContainsFunc(export.Spec.PermissionClaims, func(c apisv1alpha2.PermissionClaim) bool {
		return c.Group == bindingsResource.Group && c.Resource == bindingsResource.Resource
	})
}

// claimedBy returns which objects of a resource an export asks for, for a verb.
func claimedBy(export *apisv1alpha2.APIExport, resource schema.GroupResource, verb string) (identified, bool) {
	for i := range export.Spec.PermissionClaims {
		c := &export.Spec.PermissionClaims[i]
		if storedAs(schema.GroupResource{Group: c.Group, Resource: c.Resource}) != storedAs(resource) {
			continue
		}
		if slices.Contains(c.Verbs, verb) || slices.Contains(c.Verbs, everyVerb) {
			return identified{storedAs(resource), c.IdentityHash}, true
		}
	}
	return identified{resource: resource}, resource == bindingsResource && slices.Contains(reads, verb)
}

// Claimed returns the resources that an export claims and that come from no other
// export, its bindings included, and the definitions of all others that it reaches: what
// there is to tell in discovery.
func (x *Index) Claimed(ctx context.Context, export *apisv1alpha2.APIExport) (plain map[schema.GroupResource]bool, defined []*definitions.Definition, err error) {
	plain = map[schema.GroupResource]bool{bindingsResource: true}
	for i := range export.Spec.Resources {
		r := &export.Spec.Resources[i]
		if !storedHere(r) {
			d, err := x.virtual(ctx, client.KeyOf(export), export, r)
			if err != nil {
				return nil, nil, err
			}
			if d != nil {
				defined = append(defined, d)
			}
			continue
		}
		s, err := x.schemaOf(ctx, export, r)
		if err != nil {
			return nil, nil, err
		}
		if s != nil {
			defined = append(defined, &definitions.Definition{Schema: s.Schema, Identity: export.Status.IdentityHash})
		}
	}
	for i := range export.Spec.PermissionClaims {
		c := &export.Spec.PermissionClaims[i]
		resource := schema.GroupResource{Group: c.Group, Resource: c.Resource}
		stored, err := x.config.storedUnder(identified{resource, c.IdentityHash})
		switch {
		case offers(export, resource):
		case c.IdentityHash == "":
			for _, served := range servedAs(resource) {
				plain[served] = true
			}
		case err != nil:
			return nil, nil, err
		case stored == "":
			defined = append(defined, x.config.system(resource))
		default:
			d, err := x.resolveWildcard(ctx, definitions.Lookup{Resource: resource, Identity: c.IdentityHash, Exported: true})
			if err != nil {
				return nil, nil, err
			}
			if d != nil {
				defined = append(defined, d)
			}
		}
	}
	return plain, defined, nil
}
