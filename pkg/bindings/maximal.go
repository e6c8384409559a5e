package bindings

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// notPermitted is why a request is denied that the roles of the consumer allow.
const notPermitted = "access not permitted by maximal permission policy"

// MaximalPermission returns what decides whether the providers of bound APIs permit
// requests. An export with a policy permits what roles and bindings in its own logical
// cluster allow the user, whose name and groups have request.GroupBindingPrefix there; rules
// knows them. Where there is no policy, or no export any more, all is permitted.
func (x *Index) MaximalPermission(rules authorizer.Authorizer) func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		if !ok || cluster.Wildcard || !a.IsResourceRequest() || a.GetUser() == nil {
			return authorizer.DecisionAllow, "", nil
		}
		// As the resource is resolved: before all bindings are known, none is free of policies.
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

// CatchUp waits, where nothing is known to serve the resource of a request, until the index
// knows of a binding that is stored, and reports whether there is one: a binding says Ready
// a moment before the index hears of it, and clients may act on that at once.
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

// PermitsClaim decides whether the exports of an identity permit a request for an object
// that another export claims; its sender is somebody of the logical cluster from. All
// that have a policy must, and one has to be known, as all have to be that bindings are to.
func (x *Index) PermitsClaim(ctx context.Context, rules authorizer.Authorizer, from logicalcluster.Name, identityHash string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := first(ctx, x.config.WaitForExports); err != nil {
		return authorizer.DecisionNoOpinion, notPermitted, err
	}
	exports, unknown := x.config.ExportsByIdentity(identityHash)
	if unknown != nil && len(exports) > 0 {
		unknown = x.lacksExport(identityHash)
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

// permits asks the rules of a provider about a request whose sender is somebody of the
// logical cluster from. Who is restricted to that one is nobody to the provider: its
// administrators may have given the name and the groups, by impersonating them or as
// issuers of tokens for it.
func permits(ctx context.Context, rules authorizer.Authorizer, provider, from logicalcluster.Name, a authorizer.Attributes) (authorizer.Decision, string, error) {
	in := request.WithClusterName(ctx, provider)
	for _, who := range identity.In(from, a.GetUser()) {
		decision, _, err := rules.Authorize(in, as{a, consumer(from, identity.Itself(provider, who))})
		if decision == authorizer.DecisionAllow || err != nil {
			return decision, notPermitted, err
		}
	}
	return authorizer.DecisionNoOpinion, notPermitted, nil
}

// isBounded reports whether an export has a maximal permission policy.
func isBounded(export *apisv1alpha2.APIExport) bool {
	return export.Spec.MaximalPermissionPolicy != nil && export.Spec.MaximalPermissionPolicy.Local != nil
}

// hasPolicy reports whether the export of a binding has a maximal permission policy.
func (x *Index) hasPolicy(ctx context.Context, r *record) (bool, error) {
	export, err := x.Export(ctx, r.list.exportKey())
	if errors.Is(err, client.ErrIncomplete) && r.saysGone() {
		return false, nil // what is bound of it is served, as before
	}
	return export != nil && isBounded(export), err
}

// lacksExport returns an error if something is bound under an identity of an export that is
// not known.
func (x *Index) lacksExport(identityHash string) error {
	for key := range x.exportsWith(identityHash) {
		if _, err := x.config.Export(key); errors.Is(err, client.ErrIncomplete) {
			return err
		}
	}
	return nil
}

// as are attributes with another user.
type as struct {
	authorizer.Attributes
	u user.Info
}

// GetUser implements authorizer.Attributes.
func (a as) GetUser() user.Info { return a.u }

// consumer is how the provider of a bound API knows a user of a logical cluster that
// binds it: by prefixed names, and by the global one of a service account.
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
