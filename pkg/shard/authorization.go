package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// authorizationOptions are the defaults: everybody may read the probes.
func authorizationOptions() authz.Options {
	paths := authn.ProbePaths()
	for _, path := range authn.ProbePaths() {
		paths = append(paths, path+"/*")
	}
	return authz.NewOptions(paths...)
}

// authorizer makes what decides on requests, and keeps what knows the rules.
func (s *Server) authorizer() (authorizer.Authorizer, error) {
	index := rbac.NewIndex()
	index.Follow(s.informers.RBAC)
	others := rbac.NewShards(s.informers.Registered)
	others.Follow(s.informers.RBAC)
	s.rules = rbac.New(rbac.Config{
		Index: index, Global: others, System: tenancy.AdminCluster, HasSynced: s.informers.RBAC.HasSynced, Local: s.local.has,
	})
	s.reviews = newReviews(s.rules, s.local.has, s.peers)
	s.newViews()
	webhook, err := authz.NewWebhook(s.options.Authorization)
	if err != nil {
		return nil, err
	}
	return authz.New(authz.Config{
		Options:           s.options.Authorization,
		Find:              s.local.find,
		Rules:             s.rules,
		Webhook:           webhook,
		VirtualWorkspaces: s.views,
		Metrics:           authorizer.AuthorizerFunc(s.mayReadMetrics),

		MaximalPermission: s.bindings.MaximalPermission(s.providersRules()),
		CatchUp:           s.bindings.CatchUp,
	})
}

// mayReadMetrics decides about the metrics of this process by the rules of root.
func (s *Server) mayReadMetrics(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	may, err := s.reviews.may(ctx, a.GetUser(), question{cluster: core.RootCluster, shard: corev1alpha1.RootShard, verb: a.GetVerb(), path: a.GetPath()})
	if may && err == nil {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", err
}

// providersRules are the rules of logical clusters that may be on other shards. As long
// as not all replicas are known they deny nothing for good.
func (s *Server) providersRules() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := s.rules.Authorize(ctx, a)
		if name, _ := request.ClusterNameFrom(ctx); decision != authorizer.DecisionAllow && err == nil && !s.local.has(name) {
			err = errors.Join(s.informers.RBAC.ClusterRoles.Complete(), s.informers.RBAC.ClusterRoleBindings.Complete())
		}
		return decision, reason, err
	})
}

// providerPermits decides whether the provider of a bound API permits a request, for admission.
func (s *Server) providerPermits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := s.bindings.MaximalPermission(s.providersRules())(ctx, a)
	return decision, reason, authz.Unavailable(err)
}

// access is what the built-in resources know about who may do what.
func (s *Server) access(a authorizer.Authorizer) registry.Access {
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

// find returns the LogicalCluster of a logical cluster of this shard, or nil.
// The informer may lag behind one that was just created, so a miss is asked
// again at the source.
func (l *local) find(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	if lc := l.get(name); lc != nil {
		return lc, nil
	}
	return l.read(ctx, name)
}

// read is find without the informer.
func (l *local) read(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc, err := kinds.LogicalClusters.In(l.clients.Cluster(name.Path())).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	switch {
	case err == nil:
		return lc, nil
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	default:
		return nil, fmt.Errorf("reading the LogicalCluster: %w", err)
	}
}
