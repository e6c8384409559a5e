package bindings

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Export returns an export, or nil if it does not exist.
func (x *Index) Export(ctx context.Context, key client.Key) (*apisv1alpha2.APIExport, error) {
	if err := waitFirst(ctx, x.config.WaitForExports); err != nil {
		return nil, err
	}
	export, err := x.config.Export(key)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // not found
	}
	return export, err
}

// Offered returns the definition with which an export offers a resource, or nil if its schema is missing or invalid.
func (x *Index) Offered(ctx context.Context, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*definitions.Definition, error) {
	s, err := x.schemaOf(ctx, export, r)
	if s == nil || err != nil {
		return nil, err
	}
	d := &definitions.Definition{Schema: s.Schema, Identity: export.Status.IdentityHash}
	if !isStored(r) {
		if x.config.Virtual == nil {
			return nil, nil //nolint:nilnil // not served
		}
		d.Objects = x.config.Virtual(client.KeyOf(export), s.Resource)
	}
	return d, nil
}

// schemaOf returns the schema with which an export offers a resource, or nil if it is missing or invalid. Schemas that
// are bound on this shard need not be read.
func (x *Index) schemaOf(ctx context.Context, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*pinned, error) {
	for _, uid := range x.schemasIn(identified{schema.GroupResource{Group: r.Group, Resource: r.Name}, export.Status.IdentityHash}) {
		if p := x.schemas.cached(uid); p != nil && p.name == r.Schema {
			return p, nil
		}
	}
	original, err := x.config.Schema(ctx, client.Key{Shard: export.Annotations[request.ShardAnnotation], Cluster: logicalcluster.From(export), Name: r.Schema})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // not found
	case err != nil:
		return nil, fmt.Errorf("reading the APIResourceSchema %s: %w", r.Schema, err)
	}
	if p := x.schemas.cached(original.UID); p != nil {
		return p, nil
	}
	copied := copyOf(original)
	if copied.Conversion, err = x.conversionOf(ctx, copied); err != nil {
		return nil, err
	}
	p, err := newPinned(copied)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the bindings have a condition with the error
	}
	x.schemas.add(original.UID, p)
	return p, nil
}

// exported returns the newest schema for a resource in the exports with an identity, or nil.
func (x *Index) exported(ctx context.Context, w identified) (*pinned, error) {
	if err := waitFirst(ctx, x.config.WaitForExports); err != nil {
		return nil, err
	}
	var newest *pinned
	exports, _ := x.config.ExportsByIdentity(w.identity)
	for _, export := range exports {
		for i := range export.Spec.Resources {
			r := &export.Spec.Resources[i]
			if r.Group != w.resource.Group || r.Name != w.resource.Resource || !isStored(r) {
				continue
			}
			s, err := x.schemaOf(ctx, export, r)
			if err != nil {
				return nil, err
			}
			if s != nil && s.newer(newest) {
				newest = s
			}
		}
	}
	return newest, nil
}

func isStored(r *apisv1alpha2.ResourceSchema) bool { return r.Storage.Virtual == nil }

// notPermitted is the reason for rejecting a request that the consumer's roles allow.
const notPermitted = "access not permitted by maximal permission policy"

// MaximalPermission returns an authorizer that checks the maximal permission policies of bound APIs. Rules in the
// export's logical cluster must allow the request for the user's name and groups with the prefix
// request.GroupBindingPrefix. Without a policy, or if the export was deleted, all requests are permitted.
func (x *Index) MaximalPermission(rules authorizer.Authorizer) func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		if !ok || cluster.Wildcard || !a.IsResourceRequest() || a.GetUser() == nil {
			return authorizer.DecisionAllow, "", nil
		}
		// Like resource resolution, this must wait: until all bindings are loaded, any of them may have a policy.
		if err := x.waitSynced(ctx); err != nil {
			return authorizer.DecisionNoOpinion, notPermitted, err
		}
		resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
		r, _, bound := x.find(cluster.Name, resource)
		if !bound {
			return authorizer.DecisionAllow, "", nil
		}
		has, err := x.hasPolicy(ctx, r)
		if err != nil {
			return authorizer.DecisionNoOpinion, notPermitted, fmt.Errorf("looking up the APIExport of %s: %w", resource, err)
		}
		if !has {
			return authorizer.DecisionAllow, "", nil
		}
		return permits(ctx, rules, r.provider, cluster.Name, a)
	}
}

// CatchUp waits until the index contains the stored binding for the requested resource, unless it is served otherwise.
// It returns false if there is none. Clients may use a ready binding at once, shortly before the index observes it.
func (x *Index) CatchUp(ctx context.Context, a authorizer.Attributes) (bool, error) {
	cluster, ok := request.ClusterFrom(ctx)
	if !ok || cluster.Wildcard || !a.IsResourceRequest() || request.IsSystem(cluster.Name) {
		return false, nil
	}
	resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	known := func() bool { _, _, bound := x.find(cluster.Name, resource); return bound }
	if known() || x.config.Defined(ctx, cluster.Name, resource) {
		return false, nil
	}
	stored, err := x.stored.read(ctx, cluster.Name)
	if err != nil {
		return false, err
	}
	if _, _, bound := findIn(stored, resource); !bound {
		return false, nil
	}
	return true, x.wait(ctx, known)
}

// PermitsClaim checks the maximal permission policies of all exports with an identity, for a request for a claimed
// object. The user belongs to the logical cluster from. At least one export, and every export with bindings here, must
// be loaded.
func (x *Index) PermitsClaim(ctx context.Context, rules authorizer.Authorizer, from logicalcluster.Name, identityHash string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := waitFirst(ctx, x.config.WaitForExports); err != nil {
		return authorizer.DecisionNoOpinion, notPermitted, err
	}
	exports, unknown := x.config.ExportsByIdentity(identityHash)
	if unknown != nil && len(exports) > 0 {
		unknown = x.checkExportsLoaded(identityHash)
	}
	if unknown != nil || len(exports) == 0 {
		return authorizer.DecisionNoOpinion, notPermitted, unknown
	}
	for _, export := range exports {
		if !isBounded(export) {
			continue
		}
		if decision, reason, err := permits(ctx, rules, logicalcluster.From(export), from, a); decision != authorizer.DecisionAllow || err != nil {
			return decision, reason, err
		}
	}
	return authorizer.DecisionAllow, "", nil
}

// permits evaluates the rules of a provider for a user of the logical cluster from. The provider treats users
// that are restricted to their logical cluster as anonymous. Administrators of the logical cluster may have
// chosen their names and groups, by impersonation or as token issuers.
func permits(ctx context.Context, rules authorizer.Authorizer, provider, from logicalcluster.Name, a authorizer.Attributes) (authorizer.Decision, string, error) {
	in := request.WithClusterName(ctx, provider)
	for _, subject := range identity.In(from, a.GetUser()) {
		decision, _, err := rules.Authorize(in, as{a, consumer(from, identity.Itself(provider, subject))})
		if decision == authorizer.DecisionAllow || err != nil {
			return decision, notPermitted, err
		}
	}
	return authorizer.DecisionNoOpinion, notPermitted, nil
}

func isBounded(export *apisv1alpha2.APIExport) bool {
	return export.Spec.MaximalPermissionPolicy != nil && export.Spec.MaximalPermissionPolicy.Local != nil
}

func (x *Index) hasPolicy(ctx context.Context, r *record) (bool, error) {
	key, _ := r.exportKey()
	export, err := x.Export(ctx, key)
	if errors.Is(err, client.ErrIncomplete) && r.exportNotFound() {
		return false, nil // bound resources are still served
	}
	return export != nil && isBounded(export), err
}

// checkExportsLoaded returns an error if something is bound under the identity from an export that is not loaded.
func (x *Index) checkExportsLoaded(identityHash string) error {
	for key := range x.exportsWith(identityHash) {
		if _, err := x.config.Export(key); errors.Is(err, client.ErrIncomplete) {
			return err
		}
	}
	return nil
}

type as struct {
	authorizer.Attributes
	u user.Info
}

// GetUser implements authorizer.Attributes.
func (a as) GetUser() user.Info { return a.u }

// consumer returns the user in the form in which the provider of a bound API authorizes it: with prefixed
// names, and with the global name of a service account.
func consumer(cluster logicalcluster.Name, u user.Info) user.Info {
	name := u.GetName()
	if home, ok := identity.HomeOf(cluster, u); ok {
		name = identity.GlobalName(home, name)
	}
	groups := make([]string, 0, len(u.GetGroups()))
	for _, g := range u.GetGroups() {
		groups = append(groups, request.GroupBindingPrefix+g)
	}
	return &user.DefaultInfo{Name: request.GroupBindingPrefix + name, Groups: groups}
}
