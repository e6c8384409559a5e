package shard

import (
	"context"
	"errors"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
)

// newAuthorizer returns the authorizer of requests, which authorizes those of virtual workspaces by v.
func (s *boundResources) newAuthorizer(v virtualWorkspaces) (authorizer.Authorizer, error) {
	webhook, err := authz.NewWebhook(s.options.Authorization)
	if err != nil {
		return nil, err
	}
	return authz.NewAuthorizer(authz.Config{
		Options:           s.options.Authorization,
		Find:              s.local.find,
		Rules:             s.rules,
		Webhook:           webhook,
		VirtualWorkspaces: v,
		Metrics:           authorizer.AuthorizerFunc(s.mayReadMetrics),

		MaximalPermission: s.bindings.MaximalPermission(s.providersRules()),
		CatchUp:           s.bindings.CatchUp,
	})
}

// mayReadMetrics authorizes requests for the metrics of this process by the rules of root.
func (s *accessRules) mayReadMetrics(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	may, err := s.reviews.may(ctx, a.GetUser(), question{cluster: core.RootCluster, shard: corev1alpha1.RootShard, verb: a.GetVerb(), path: a.GetPath()})
	if may && err == nil {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", err
}

// providersRules are rules of logical clusters that may be on other shards. Until all replicas are loaded, a denial is
// an error, because the missing rules could allow the request.
func (s *accessRules) providersRules() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := s.rules.Authorize(ctx, a)
		if name, _ := request.ClusterNameFrom(ctx); decision != authorizer.DecisionAllow && err == nil && !s.local.has(name) {
			err = errors.Join(s.informers.RBAC.ClusterRoles.Complete(), s.informers.RBAC.ClusterRoleBindings.Complete())
		}
		return decision, reason, err
	})
}

// providerPermits is the maximal permission policy of a bound API, for admission.
func (s *boundResources) providerPermits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := s.bindings.MaximalPermission(s.providersRules())(ctx, a)
	return decision, reason, authz.Unavailable(err)
}

func (s *accessRules) access(a authorizer.Authorizer) registry.Access {
	access := registry.Access{Authorizer: a, Rules: s.rules, Wrote: s.rules.Wrote}
	if s.options.Authorization.WebhookConfigFile != "" {
		access.Rules = incompleteRules{s.rules}
	}
	return access
}

// incompleteRules reports the rules as incomplete, because a webhook also authorizes.
type incompleteRules struct{ *rbac.Authorizer }

func (r incompleteRules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resources, paths, _, err := r.Authorizer.RulesFor(ctx, u, namespace)
	return resources, paths, true, errors.Join(err, errors.New("webhook authorizer does not support user rule resolution"))
}
