package controllers

import (
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/bootstrap"
	"github.com/shardplane/shardplane/pkg/controllers/policytypes"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/controllers/workspace"
	"github.com/shardplane/shardplane/pkg/request"
)

// Sources are the servers that a shard's controllers read from.
type Sources struct {
	// ShardName is the name of the shard.
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Root reaches the root shard as system:masters. The root shard leaves it out.
	Root *client.Factory
	// Cache reaches the cache server as system:masters. It may be left out:
	// what other shards own is then read from the root shard.
	Cache *client.Factory
}

// isRoot tells whether the shard is the one that has the logical cluster root.
func (s Sources) isRoot() bool { return s.ShardName == bootstrap.RootShard }

// rootShard returns the clients of the root shard.
func (s Sources) rootShard() *client.Factory {
	if s.isRoot() {
		return s.Local
	}
	return s.Root
}

// rootCluster is where the Shard objects are read that count, which are those
// of the logical cluster root and no others.
func (s Sources) rootCluster() client.Scope {
	if !s.isRoot() && s.Cache != nil {
		return s.Cache.Shard(bootstrap.RootShard).Cluster(core.RootCluster.Path())
	}
	return s.rootShard().Cluster(core.RootCluster.Path())
}

// others is where objects of other shards are read; there may be no such place.
func (s Sources) others() (client.Scope, bool) {
	switch {
	case s.Cache != nil:
		return s.Cache.Shard(request.Wildcard).Wildcard(), true
	case !s.isRoot():
		return s.Root.Wildcard(), true
	default:
		return client.Scope{}, false
	}
}

// Informers is what a shard's controllers watch, shared among them.
type Informers struct {
	// LogicalClusters, Workspaces, Namespaces, ResourceQuotas and WorkspaceTypes are those of
	// all logical clusters of the shard.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	Workspaces      *client.Informer[*tenancyv1alpha1.Workspace]
	Namespaces      *client.Informer[*corev1.Namespace]
	ResourceQuotas  *client.Informer[*corev1.ResourceQuota]
	WorkspaceTypes  *client.Informer[*tenancyv1alpha1.WorkspaceType]

	// ServiceAccounts are those of all logical clusters of the shard, and
	// TokenSecrets the secrets that are made for their tokens. Of both only what
	// tokens are checked against is kept.
	ServiceAccounts *client.Informer[*corev1.ServiceAccount]
	TokenSecrets    *client.Informer[*corev1.Secret]

	// UncheckedPolicies are the policies whose expressions were not yet compared
	// with the types that they match.
	UncheckedPolicies *client.Informer[*admissionregistrationv1.ValidatingAdmissionPolicy]

	// RBAC are the roles and bindings of all logical clusters of the shard.
	RBAC rbac.Informers
	// SharedRBAC are the cluster roles and bindings that shards share, as the
	// cache server has them; nil where there is none.
	SharedRBAC *rbac.Replicas

	// Shards are those that are registered in root.
	Shards *client.Informer[*corev1alpha1.Shard]
	// OwnShard has the Shard of this shard, as the root shard has it. On the
	// root shard it is Shards.
	OwnShard *client.Informer[*corev1alpha1.Shard]
	// OtherWorkspaceTypes are those of other shards; nil where they cannot be
	// read.
	OtherWorkspaceTypes *client.Informer[*tenancyv1alpha1.WorkspaceType]

	shardName string
}

// NewInformers makes the informers; run those that Runners returns.
func NewInformers(s Sources) *Informers {
	all := s.Local.Wildcard()
	byPath := map[string]client.IndexFunc[*tenancyv1alpha1.WorkspaceType]{workspace.PathIndex: workspace.IndexTypeByPath}
	i := &Informers{
		shardName: s.ShardName,
		LogicalClusters: client.LogicalClusters.Informer(all, client.InformerOptions[*corev1alpha1.LogicalCluster]{
			Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{
				workspace.PathIndex:  workspace.IndexByPath,
				workspace.OwnerIndex: workspace.IndexByOwner,
			},
		}),
		Workspaces:     client.Workspaces.Informer(all, client.InformerOptions[*tenancyv1alpha1.Workspace]{}),
		Namespaces:     client.Namespaces.Informer(all, client.InformerOptions[*corev1.Namespace]{}),
		ResourceQuotas: client.ResourceQuotas.Informer(all, client.InformerOptions[*corev1.ResourceQuota]{}),
		WorkspaceTypes: client.WorkspaceTypes.Informer(all, client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{Indexers: byPath}),
		ServiceAccounts: client.ServiceAccounts.Informer(all, client.InformerOptions[*corev1.ServiceAccount]{
			Transform: slimServiceAccount,
		}),
		TokenSecrets: client.Secrets.Informer(all, client.InformerOptions[*corev1.Secret]{
			Name:          "token secrets",
			FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String(),
			Indexers:      map[string]client.IndexFunc[*corev1.Secret]{serviceaccount.AccountIndex: serviceaccount.IndexByAccount},
		}),
		UncheckedPolicies: client.ValidatingAdmissionPolicies.Informer(all, client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicy]{
			Name: "unchecked policies", Keep: policytypes.Unchecked,
		}),
		Shards: client.Shards.Informer(s.rootCluster(), client.InformerOptions[*corev1alpha1.Shard]{Name: "shards@root"}),
	}
	i.RBAC = newRBACInformers(all)
	if s.Cache != nil {
		shared := newReplicatedRBACInformers(s.Cache.Shard(request.Wildcard).Wildcard())
		i.SharedRBAC = &shared
	}
	i.OwnShard = i.Shards
	if !s.isRoot() {
		i.OwnShard = client.Shards.Informer(s.Root.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{
			Name:          "own shard@root",
			FieldSelector: fields.OneTermEqualSelector("metadata.name", s.ShardName).String(),
		})
	}
	if others, ok := s.others(); ok {
		i.OtherWorkspaceTypes = client.WorkspaceTypes.Informer(others, client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{
			Name: "workspacetypes of other shards", Indexers: byPath,
		})
	}
	return i
}

// Runners returns the informers to run, each once, in an order of no meaning.
func (i *Informers) Runners() []client.Runner {
	runners := []client.Runner{i.LogicalClusters, i.Workspaces, i.Namespaces, i.ResourceQuotas, i.WorkspaceTypes, i.ServiceAccounts, i.TokenSecrets, i.Shards, i.UncheckedPolicies}
	runners = append(runners, i.RBAC.Roles, i.RBAC.RoleBindings, i.RBAC.ClusterRoles, i.RBAC.ClusterRoleBindings)
	if i.SharedRBAC != nil {
		runners = append(runners, i.SharedRBAC.ClusterRoles, i.SharedRBAC.ClusterRoleBindings)
	}
	if i.OwnShard != i.Shards {
		runners = append(runners, i.OwnShard)
	}
	if i.OtherWorkspaceTypes != nil {
		runners = append(runners, i.OtherWorkspaceTypes)
	}
	return runners
}

// workspaceTypes returns where types are looked up, in that order.
func (i *Informers) workspaceTypes() []*client.Informer[*tenancyv1alpha1.WorkspaceType] {
	types := []*client.Informer[*tenancyv1alpha1.WorkspaceType]{i.WorkspaceTypes}
	if i.OtherWorkspaceTypes != nil {
		types = append(types, i.OtherWorkspaceTypes)
	}
	return types
}

// Types finds the types of Workspaces of the shard.
func (i *Informers) Types() workspace.Types {
	return workspace.NewTypes(i.shardName, i.LogicalClusters, i.Shards, i.workspaceTypes())
}

// Registered reports whether there is a Shard of that name in root, as far as
// the shard knows. Replicas of others are left over.
func (i *Informers) Registered(shard string) bool {
	_, err := i.Shards.Lister().Cluster(core.RootCluster).Get("", shard)
	return err == nil
}

// slimServiceAccount keeps what tells whether a token is still valid: there is
// an account in every namespace.
func slimServiceAccount(account *corev1.ServiceAccount) (*corev1.ServiceAccount, error) {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Name: account.Name, Namespace: account.Namespace, UID: account.UID, ResourceVersion: account.ResourceVersion,
		DeletionTimestamp: account.DeletionTimestamp,
		Annotations:       map[string]string{logicalcluster.AnnotationKey: account.Annotations[logicalcluster.AnnotationKey]},
	}}, nil
}
