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

// Access is what the resources know about who may do what.
type Access struct {
	// Identity is what they know about who users are.
	Identity Identity
	// Authorizer decides on requests, and answers the reviews.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists the rules of users and roles. Without it only members of
	// system:masters may write roles and bindings.
	Rules Rules
	// Wrote is told about every write of a role or binding, by its resource and
	// resourceVersion, before the writer gets its answer; optional.
	Wrote func(cluster logicalcluster.Name, resource, resourceVersion string)
}

// Rules lists the rules that apply in the logical cluster of a context.
type Rules interface {
	authorizer.RuleResolver
	rbac.Rules
}

// NoAccess is the Access of servers that let nobody but members of
// system:masters do anything.
func NoAccess() Access {
	return Access{Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), Rules: noRules{}}
}

// noRules are the rules where there are none.
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
