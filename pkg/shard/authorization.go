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

// newAuthorizer returns the authorizer of requests. It decides about virtual workspaces as v does.
func (s *boundResources) newAuthorizer(v views) (authorizer.Authorizer, error) {
	webhook, err := authz.NewWebhook(s.options.Authorization)
	if err != nil {
		return nil, err
	}
	return authz.New(authz.Config{
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

// mayReadMetrics decides about the metrics of this process by the rules of root.
func (s *accessRules) mayReadMetrics(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	may, err := s.reviews.may(ctx, a.GetUser(), question{cluster: core.RootCluster, shard: corev1alpha1.RootShard, verb: a.GetVerb(), path: a.GetPath()})
	if may && err == nil {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", err
}

// providersRules are the rules of logical clusters that may be on other shards. As long
// as not all replicas are known they deny nothing for good.
func (s *accessRules) providersRules() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := s.rules.Authorize(ctx, a)
		if name, _ := request.ClusterNameFrom(ctx); decision != authorizer.DecisionAllow && err == nil && !s.local.has(name) {
			err = errors.Join(s.informers.RBAC.ClusterRoles.Complete(), s.informers.RBAC.ClusterRoleBindings.Complete())
		}
		return decision, reason, err
	})
}

// providerPermits decides whether the provider of a bound API permits a request, for admission.
func (s *boundResources) providerPermits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := s.bindings.MaximalPermission(s.providersRules())(ctx, a)
	return decision, reason, authz.Unavailable(err)
}

// access is what the built-in resources know about who may do what.
func (s *accessRules) access(a authorizer.Authorizer) registry.Access {
	access := registry.Access{Authorizer: a, Rules: s.rules, Wrote: s.rules.Wrote}
	if s.options.Authorization.WebhookConfigFile != "" {
		access.Rules = incompleteRules{s.rules}
	}
	return access
}

// incompleteRules are the rules where a webhook has a say, too.
type incompleteRules struct{ *rbac.Authorizer }

// RulesFor implements authorizer.RuleResolver.
func (r incompleteRules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resources, paths, _, err := r.Authorizer.RulesFor(ctx, u, namespace)
	return resources, paths, true, errors.Join(err, errors.New("webhook authorizer does not support user rule resolution"))
}
