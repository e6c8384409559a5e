package registry

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/shardplane/shardplane/pkg/registry/rbac"
)

// Access configures the resources that deal with the permissions of users.
type Access struct {
	Identity Identity
	// Authorizer also evaluates access reviews.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists the rules of users and roles. Without it, only members of system:masters may write roles and bindings.
	Rules Rules
	// Wrote is called for every write of a role or binding before the response is sent. It is optional.
	Wrote func(cluster logicalcluster.Name, resource, resourceVersion string)
}

// Rules lists the rules that apply in the logical cluster of a context.
type Rules interface {
	authorizer.RuleResolver
	rbac.Rules
}

// NoAccess returns an Access with which only members of system:masters have permissions.
func NoAccess() Access {
	return Access{Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), Rules: noRules{}}
}

type noRules struct{}

func (noRules) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, false, nil
}

func (noRules) RulesOf(context.Context, user.Info, string) ([]rbacv1.PolicyRule, error) {
	return nil, nil
}

func (noRules) RulesIn(_ context.Context, ref rbacv1.RoleRef, _ string) ([]rbacv1.PolicyRule, error) {
	return nil, apierrors.NewNotFound(rbacv1.Resource(ref.Kind), ref.Name)
}
