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

// Reach describes the objects of a resource that requests through an export's virtual workspace can access.
type Reach struct {
	// Resource is the resource with which the objects are stored.
	Resource schema.GroupResource
	// Identity is the identity that exports specify for the objects, or empty if no export defines them.
	Identity string
	// Stored is the identity in the storage keys, which is empty for system resources.
	Stored string
	// Set restricts access. It is nil for the export's own resources.
	Set *claims.Set
}

// Own reports whether the export itself offers the resource.
func (r *Reach) Own() bool { return r.Set == nil }

// Reach returns the objects that requests with a verb for a resource can access through an export's virtual workspace.
// It returns nil if the export neither offers nor claims the resource, or if no binding there accepts the claim.
func (x *Index) Reach(ctx context.Context, key client.Key, in request.Cluster, resource schema.GroupResource, verb string) (*Reach, error) {
	export, err := x.syncedExport(ctx, key)
	if export == nil || err != nil {
		return nil, err
	}
	if offers(export, resource) {
		return x.reachOwn(key, export, in, resource)
	}
	w, claims := claimedBy(export, resource, verb)
	if !claims {
		return nil, nil //nolint:nilnil // not claimed
	}
	if !in.Wildcard && !selectionIn(x.records(in.Name), key, w, verb).Held() {
		return nil, nil //nolint:nilnil // not accepted
	}
	stored, err := x.config.storedUnder(w)
	if err != nil {
		return nil, err
	}
	return &Reach{Resource: w.resource, Identity: w.identity, Stored: stored, Set: x.setOf(key, setKey{identified: w, stored: stored, verb: verb})}, nil
}

// syncedExport returns an export after all bindings have been loaded, or nil if it does not exist.
func (x *Index) syncedExport(ctx context.Context, key client.Key) (*apisv1alpha2.APIExport, error) {
	if err := x.waitSynced(ctx); err != nil {
		return nil, err
	}
	return x.Export(ctx, key)
}

// reachOwn is Reach for a resource that the export offers. It must not return an empty identity, because objects
// without an identity do not belong to the export.
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
		return nil, nil //nolint:nilnil // not bound
	}
	stored, err := x.config.storedUnder(identified{resource, identity})
	if err != nil {
		return nil, err
	}
	return &Reach{Resource: storedAs(resource), Identity: identity, Stored: stored}, nil
}

// offers reports whether an export offers a resource that is stored as custom resources.
func offers(export *apisv1alpha2.APIExport, resource schema.GroupResource) bool {
	return slices.ContainsFunc(export.Spec.Resources, func(r apisv1alpha2.ResourceSchema) bool {
		return r.Group == resource.Group && r.Name == resource.Resource && isStored(&r)
	})
}

// Virtual returns the definition of a resource that an export offers by virtual storage, in one logical cluster or in
// all of the shard. It returns nil for other resources, and if no binding in the logical cluster has bound it.
func (x *Index) Virtual(ctx context.Context, key client.Key, in request.Cluster, resource schema.GroupResource) (*definitions.Definition, error) {
	export, err := x.syncedExport(ctx, key)
	if export == nil || err != nil {
		return nil, err
	}
	bound := in.Wildcard || slices.ContainsFunc(x.records(in.Name), func(r *record) bool {
		return r.of(key) && r.byResource[resource].virtual
	})
	for i := range export.Spec.Resources {
		r := &export.Spec.Resources[i]
		if bound && !isStored(r) && r.Group == resource.Group && r.Name == resource.Resource {
			return x.Offered(ctx, export, r)
		}
	}
	return nil, nil //nolint:nilnil // not found
}

// ReadsBindingsOnly reports whether an export has no permission claim on APIBindings, so that it may only read its own.
func ReadsBindingsOnly(export *apisv1alpha2.APIExport) bool {
	return !slices.ContainsFunc(export.Spec.PermissionClaims, func(c apisv1alpha2.PermissionClaim) bool {
		return c.Group == bindingsResource.Group && c.Resource == bindingsResource.Resource
	})
}

func claimedBy(export *apisv1alpha2.APIExport, resource schema.GroupResource, verb string) (identified, bool) {
	for i := range export.Spec.PermissionClaims {
		c := &export.Spec.PermissionClaims[i]
		if storedAs(schema.GroupResource{Group: c.Group, Resource: c.Resource}) != storedAs(resource) {
			continue
		}
		if permitsVerb(c.Verbs, verb) {
			return identified{storedAs(resource), c.IdentityHash}, true
		}
	}
	return identified{resource: resource}, resource == bindingsResource && slices.Contains(reads, verb)
}

// Claimed returns the resources for discovery in an export's virtual workspace. plain contains claimed resources that
// no other export defines, including APIBindings. defined contains the definitions of all other accessible resources.
func (x *Index) Claimed(ctx context.Context, export *apisv1alpha2.APIExport) (plain map[schema.GroupResource]bool, defined []*definitions.Definition, err error) {
	plain = map[schema.GroupResource]bool{bindingsResource: true}
	for i := range export.Spec.Resources {
		d, err := x.Offered(ctx, export, &export.Spec.Resources[i])
		if err != nil {
			return nil, nil, err
		}
		if d != nil {
			defined = append(defined, d)
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
			defined = append(defined, x.config.System(resource))
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
