package bindings

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		in := request.WithClusterName(ctx, r.provider)
		for _, who := range identity.In(cluster.Name, a.GetUser()) {
			decision, _, err := rules.Authorize(in, as{a, consumer(cluster.Name, who)})
			if decision == authorizer.DecisionAllow || err != nil {
				return decision, notPermitted, err
			}
		}
		return authorizer.DecisionNoOpinion, notPermitted, nil
	}
}

// hasPolicy reports whether the export of a binding has a maximal permission policy.
func (x *Index) hasPolicy(ctx context.Context, r *record) (bool, error) {
	if err := first(ctx, x.config.WaitForExports); err != nil {
		return false, err
	}
	export, err := x.config.Export(client.Key{Cluster: r.provider, Name: r.export})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && export.Spec.MaximalPermissionPolicy != nil && export.Spec.MaximalPermissionPolicy.Local != nil, err
}

// as are attributes with another user.
type as struct {
	authorizer.Attributes
	u user.Info
}

// GetUser implements authorizer.Attributes.
func (a as) GetUser() user.Info { return a.u }

// consumer is how the provider of a bound API knows a user of a logical cluster that
// binds it: by prefixed names, without what restricts the user to logical clusters.
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
