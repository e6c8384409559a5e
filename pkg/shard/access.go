package shard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/registry"
	registrycore "github.com/shardplane/shardplane/pkg/registry/core"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/admin"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/virtual/initialization"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
	"github.com/shardplane/shardplane/pkg/virtual/schemas"
)

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
func (s *installation) mayReadMetrics(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	may, err := s.reviews.may(ctx, a.GetUser(), accessReview{cluster: core.RootCluster, shard: corev1alpha1.RootShard, verb: a.GetVerb(), path: a.GetPath()})
	if may && err == nil {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", err
}

// providersRules are rules of logical clusters that may be on other shards. Until all replicas are loaded, a denial is
// an error, because the missing rules could allow the request.
func (s *installation) providersRules() authorizer.Authorizer {
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

func (s *requestAccess) access() registry.Access {
	access := registry.Access{
		Authorizer: s.rights, Rules: s.rules, Wrote: s.rules.Wrote,
		Reviewer: s.authentication.Reviewer(), Audiences: s.authentication.Audiences,
	}
	if s.options.Authorization.WebhookConfigFile != "" {
		access.Rules = incompleteRules{s.rules}
	}
	if issuer := s.authentication.Issuer; issuer != nil {
		access.Tokens = registrycore.Tokens{
			Issuer: issuer, Audiences: s.authentication.Audiences, MaxLifetime: s.options.Authentication.MaxTokenLifetime,
		}
	}
	return access
}

// incompleteRules reports the rules as incomplete, because a webhook also authorizes.
type incompleteRules struct{ *rbac.Authorizer }

func (r incompleteRules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resources, paths, _, err := r.Authorizer.RulesFor(ctx, u, namespace)
	return resources, paths, true, errors.Join(err, errors.New("webhook authorizer does not support user rule resolution"))
}

func (s *boundResources) newVirtualWorkspaces(ofExports *apiexport.VirtualWorkspaces) virtualWorkspaces {
	ofTypes := &initialization.VirtualWorkspaces{
		Type: func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
			return s.informers.WorkspaceTypes.Get(key.Cluster, "", key.Name)
		},
		Find: s.local.find, Read: s.local.read, Rules: s.rules,
		Bounds: func(next authorizer.Authorizer) authorizer.Authorizer {
			return authz.WithProtectedStatus(authz.WithMaximalPermission(next, s.bindings.MaximalPermission(s.providersRules())))
		},
		ServeDocuments: s.late.ServeDocuments,
	}
	kinds := map[*request.Mount]virtualWorkspace{
		request.APIExports: ofExports,
		request.APIResourceSchemas: &schemas.VirtualWorkspaces{
			Bindings: s.bindings, Local: s.local.has, ServeDocuments: s.late.ServeDocuments,
		},
		request.Replication: &replication.VirtualWorkspaces{
			Replicas: s.replicas, Bindings: s.bindings, Inactive: s.local.inactive, ServeDocuments: s.late.ServeDocuments,
		},
	}
	for _, mount := range initialization.Mounts() {
		kinds[mount] = ofTypes
	}
	return virtualWorkspaces{kinds: kinds, local: s.local.has, rules: s.providersRules(), findRemote: s.findRemote}
}

// findRemote returns the replica of a LogicalCluster of another shard, or nil.
func (s *installation) findRemote(_ context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	return optional(s.informers.AllClusters.Get(name, "", corev1alpha1.LogicalClusterName))
}

func (s *boundResources) withAdmin(next http.Handler) http.Handler {
	return admin.NewAdminVirtualWorkspace(admin.Config{Shards: s.informers.Shards, ServeDocuments: s.late.ServeDocuments})(next)
}

// grantingCluster returns the logical cluster of the object that grants a virtual workspace, or "". It returns an error
// until the objects of other shards are loaded.
func (s *installation) grantingCluster(path logicalcluster.Path, mount *request.Mount, object string) (logicalcluster.Name, error) {
	if mount == request.APIExports {
		if name, err := s.exportCluster(path, object); name != "" && err == nil {
			return name, nil
		}
		return "", authz.Unavailable(s.informers.APIExports.Read())
	}
	if name, ok := s.local.resolve(path); ok || mount == request.APIResourceSchemas {
		return name, nil
	}
	if mount == request.Replication {
		name, _ := path.Name() // endpoints of slices contain the name of the logical cluster
		return name, nil
	}
	t, ok := s.informers.Types()(path, tenancyv1alpha1.WorkspaceTypeName(object))
	if !ok {
		return "", authz.Unavailable(s.informers.WorkspaceTypes.Read())
	}
	return logicalcluster.From(t), nil
}

// accounts looks up the objects to which tokens of service accounts are bound, on this shard and on others.
// A logical cluster that the local informer does not contain yet is read like that of another shard.
type accounts struct {
	*installation
	remote *serviceaccount.Remote // includes this shard
}

func (s *installation) newAccounts() *accounts {
	return &accounts{s, serviceaccount.NewRemote(func(logicalcluster.Name) ([]*peers.Peer, bool) { return s.peers.All() })}
}

func (a *accounts) ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error) {
	if !a.local.has(cluster) {
		return a.remote.ServiceAccount(ctx, cluster, namespace, name)
	}
	if account, err := a.informers.ServiceAccounts.Lister().Get(client.Key{Cluster: cluster, Namespace: namespace, Name: name}); err == nil {
		return account, nil
	}
	// The informer may lag behind the creation.
	return kinds.ServiceAccounts.InNamespace(a.sources.Local.Cluster(cluster.Path()), namespace).Get(ctx, name, metav1.GetOptions{})
}

func (a *accounts) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	if !a.local.has(cluster) {
		return a.remote.Secret(ctx, cluster, namespace, name)
	}
	if secret, err := a.informers.TokenSecrets.Lister().Get(client.Key{Cluster: cluster, Namespace: namespace, Name: name}); err == nil {
		return secret, nil
	}
	return kinds.Secrets.InNamespace(a.sources.Local.Cluster(cluster.Path()), namespace).Get(ctx, name, metav1.GetOptions{})
}

// workspaceOf returns the logical cluster of ctx and the authentication configurations of its type, not extended ones.
func (s *installation) workspaceOf(ctx context.Context) authn.Workspace {
	scope := request.ScopeFrom(ctx)
	lc := s.local.get(scope.Cluster.Name)
	if scope.VirtualWorkspace != nil || lc == nil {
		return authn.Workspace{}
	}
	w := authn.Workspace{Cluster: scope.Cluster.Name}
	isNew := time.Since(lc.CreationTimestamp.Time) < authn.NewFor
	t, err := s.informers.Types().Itself(lc)
	if err != nil || t.WorkspaceType == nil {
		w.Incomplete = err != nil && isNew
		return w
	}
	for _, ref := range t.Spec.AuthenticationConfigurations {
		c, err := s.informers.AuthenticationConfigurations.Get(logicalcluster.From(t.WorkspaceType), "", ref.Name)
		if err != nil {
			w.Incomplete = w.Incomplete || isNew
			continue
		}
		w.Name(c)
	}
	return w
}

// recordIssuerFault records an Event about an invalid configuration of this shard. Other shards record their own.
func (s *installation) recordIssuerFault(ctx context.Context, of *issuers.Configuration, fault string) error {
	cluster := logicalcluster.From(of)
	if !s.local.has(cluster) {
		return nil
	}
	return events.Record(ctx, s.sources.Local.Cluster(cluster.Path()), events.Event{
		About: issuers.Reference(of), Component: issuers.Component, Type: corev1.EventTypeWarning, Reason: issuers.Reason, Message: fault,
	}, fault)
}
