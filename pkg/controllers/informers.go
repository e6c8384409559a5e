package controllers

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/controllers/apiexport"
	"github.com/shardplane/shardplane/pkg/controllers/endpointslice"
	"github.com/shardplane/shardplane/pkg/controllers/replicationreasons"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/controllers/workspace"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Sources are the servers that the controllers of a shard read from.
type Sources struct {
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Root reaches the root shard, for reading. It is nil on the root shard.
	Root *client.Factory
	// Cache reaches the cache server. Replicas is for informers of the replicas of other shards, which retain objects that
	// the cache server has lost. If both are nil, objects of other shards are read from the root shard.
	Cache    *client.Factory
	Replicas *replicas.Cache
}

func (s Sources) isRoot() bool { return s.ShardName == corev1alpha1.RootShard }

func (s Sources) rootShard() *client.Factory {
	if s.isRoot() {
		return s.Local
	}
	return s.Root
}

// rootCluster is the source of the Shard objects: only those in the logical cluster root are valid.
func (s Sources) rootCluster() client.Scope {
	if !s.isRoot() && s.Cache != nil {
		return s.Replicas.Factory().Shard(corev1alpha1.RootShard).Cluster(core.RootCluster.Path())
	}
	return s.rootShard().Cluster(core.RootCluster.Path())
}

// replicas is the scope of the replicas of all shards on the cache server.
func (s Sources) replicas() client.Scope {
	return s.Replicas.Factory().Shard(request.Wildcard).Wildcard()
}

// Informers are the shared informers of a shard's controllers. A client.Informer contains all objects of the shard. A
// replicas.Dual also contains objects of other shards if there is a cache server.
type Informers struct {
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// AllClusters includes those of other shards with exports or types, reduced to the fields for authorization.
	AllClusters    *replicas.Dual[*corev1alpha1.LogicalCluster]
	Workspaces     *client.Informer[*tenancyv1alpha1.Workspace]
	Namespaces     *client.Informer[*corev1.Namespace]
	ResourceQuotas *client.Informer[*corev1.ResourceQuota]

	APIExports                              *replicas.Dual[*apisv1alpha2.APIExport]
	APIConversions                          *replicas.Dual[*apisv1alpha1.APIConversion]
	CachedResources, ClusterCachedResources *replicas.Dual[*cachev1alpha1.CachedResource]
	EndpointSlices                          *client.Informer[*apisv1alpha1.APIExportEndpointSlice]
	// CachedSlices and ClusterCachedSlices are the endpoint slices of cached resources.
	CachedSlices        *replicas.Dual[*cachev1alpha1.CachedResourceEndpointSlice]
	ClusterCachedSlices *replicas.Dual[*apis.ClusterCachedResourceEndpointSlice]
	Partitions          *client.Informer[*topologyv1alpha1.Partition]
	WorkspaceTypes      *replicas.Dual[*tenancyv1alpha1.WorkspaceType]
	// AuthenticationConfigurations includes those of other shards that workspace types reference.
	AuthenticationConfigurations *replicas.Dual[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]

	// ServiceAccounts and TokenSecrets contain only the fields that token validation needs.
	ServiceAccounts *client.Informer[*corev1.ServiceAccount]
	TokenSecrets    *client.Informer[*corev1.Secret]

	// RBAC includes the cluster roles and bindings that other shards share.
	RBAC rbac.Informers
	// Hooks includes the webhooks and policies of other shards' logical clusters that export APIs.
	Hooks Hooks

	// Shards are the registered shards. OwnShard contains the own one as stored on the root shard, where both are the same.
	Shards, OwnShard *client.Informer[*corev1alpha1.Shard]

	// The following contain reports of all shards on the cache server, and are nil if there is none.
	SubtreeUsages          *client.Informer[*subtrees.SubtreeUsage]
	ExportUses             *client.Informer[*exportuses.ExportUse]
	ReplicationCheckpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]

	root    bool // set on the root shard
	runners []client.Runner
	saved   []snapshot.Source
	// hooks returns the controller for the hooks of a resource.
	hooks map[string]func(replicationreasons.Config) reconcile.Made
}

type indexes[T client.Object] = map[string]client.IndexFunc[T]

// NewInformers returns the informers. The caller must run those that Runners returns.
func NewInformers(s Sources) *Informers {
	all := s.Local.Wildcard()
	i := &Informers{root: s.isRoot(), hooks: map[string]func(replicationreasons.Config) reconcile.Made{}}
	if s.Cache != nil {
		i.ReplicationCheckpoints = reports(i, s, replicationcheckpoints.Checkpoints) // must be saved first: it covers what is saved after it
		i.ExportUses = reports(i, s, exportuses.Uses)
		i.SubtreeUsages = reports(i, s, subtrees.Usages)
		i.followCheckpoints(s.Replicas)
	}
	i.LogicalClusters = add(i, kinds.LogicalClusters.Informer(all, client.InformerOptions[*corev1alpha1.LogicalCluster]{
		// A watch list would encode and decode the JSON of all objects together. Pages limit the
		// memory.
		DisableWatchList: true,
		Indexers: indexes[*corev1alpha1.LogicalCluster]{
			tenancy.PathIndex:    tenancy.IndexByPath,
			tenancy.TypeIndex:    tenancy.IndexByType,
			workspace.OwnerIndex: workspace.IndexByOwner,
			subtrees.Index:       subtrees.IndexLimited,
		},
	}))
	i.Workspaces = local(i, s, kinds.Workspaces, nil)
	i.Namespaces = local(i, s, kinds.Namespaces, nil)
	i.ResourceQuotas = local(i, s, kinds.ResourceQuotas, nil)
	i.ServiceAccounts = add(i, kinds.ServiceAccounts.Informer(all, client.InformerOptions[*corev1.ServiceAccount]{Transform: slimServiceAccount}))
	i.TokenSecrets = kinds.Secrets.Informer(all, client.InformerOptions[*corev1.Secret]{
		Name:          "token secrets",
		FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String(),
		Indexers:      indexes[*corev1.Secret]{serviceaccount.AccountIndex: serviceaccount.IndexByAccount},
	})
	add(i, unlogged{i.TokenSecrets})
	i.Shards = add(i, kinds.Shards.Informer(s.rootCluster(), client.InformerOptions[*corev1alpha1.Shard]{
		Name: "shards@root", Transform: replicas.ShowDeletion[*corev1alpha1.Shard],
	}))
	i.OwnShard = i.Shards
	if !s.isRoot() {
		i.OwnShard = add(i, kinds.Shards.Informer(s.Root.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{
			Name: "own shard@root", FieldSelector: fields.OneTermEqualSelector("metadata.name", s.ShardName).String(),
		}))
		if s.Cache != nil {
			save(i, i.Shards)
		}
	}
	i.AllClusters = i.clusters(s)
	i.WorkspaceTypes = dual(i, s, kinds.WorkspaceTypes, true, indexes[*tenancyv1alpha1.WorkspaceType]{tenancy.PathIndex: tenancy.IndexTypeByPath})
	i.AuthenticationConfigurations = dual(i, s, kinds.WorkspaceAuthenticationConfigurations, true, nil)
	i.APIExports = dual(i, s, kinds.APIExports, false, indexes[*apisv1alpha2.APIExport]{
		apiexport.SecretIndex: apiexport.IndexBySecret, apibinding.SchemaIndex: apibinding.IndexBySchema, apis.PathIndex: apis.IndexByPath,
		apis.IdentityIndex: apis.IndexByIdentity,
	})
	i.APIConversions = dual(i, s, kinds.APIConversions, false, nil)
	i.RBAC = rbac.Informers{
		Roles:        local(i, s, kinds.Roles, nil),
		RoleBindings: local(i, s, kinds.RoleBindings, nil),
		ClusterRoles: dual(i, s, kinds.ClusterRoles, false, indexes[*rbacv1.ClusterRole]{replicationreasons.RuleIndex: replicationreasons.IndexByRule}),
		ClusterRoleBindings: dual(i, s, kinds.ClusterRoleBindings, false, indexes[*rbacv1.ClusterRoleBinding]{
			replicationreasons.RoleIndex: replicationreasons.IndexByRole, replicationreasons.SubjectIndex: replicationreasons.IndexBySubject,
		}),
	}
	i.EndpointSlices = local(i, s, kinds.APIExportEndpointSlices, indexes[*apisv1alpha1.APIExportEndpointSlice]{endpointslice.ExportIndex: endpointslice.OfExports.IndexByExport})
	i.CachedSlices = dual(i, s, kinds.CachedResourceEndpointSlices, false, indexes[*cachev1alpha1.CachedResourceEndpointSlice]{
		endpointslice.ExportIndex: endpointslice.OfCached.IndexByExport,
	})
	i.ClusterCachedSlices = dual(i, s, endpointslice.ClusterCachedSlices, false, indexes[*apis.ClusterCachedResourceEndpointSlice]{
		endpointslice.ExportIndex: endpointslice.OfClusterCached.IndexByExport,
	})
	i.CachedResources = dual(i, s, kinds.CachedResources, false, nil)
	i.ClusterCachedResources = dual(i, s, kinds.ClusterCachedResources, false, nil)
	i.Partitions = local(i, s, kinds.Partitions, nil)
	i.Hooks = Hooks{
		MutatingWebhooks:   hooks(i, s, kinds.MutatingWebhookConfigurations),
		ValidatingWebhooks: hooks(i, s, kinds.ValidatingWebhookConfigurations),
		MutatingPolicies:   hooks(i, s, kinds.MutatingAdmissionPolicies),
		MutatingBindings:   hooks(i, s, kinds.MutatingAdmissionPolicyBindings),
		ValidatingPolicies: hooks(i, s, kinds.ValidatingAdmissionPolicies),
		ValidatingBindings: hooks(i, s, kinds.ValidatingAdmissionPolicyBindings),
	}
	return i
}

// followCheckpoints forwards the checkpoints and the removal of other shards to the readers of replicas.
func (i *Informers) followCheckpoints(cache *replicas.Cache) {
	note := func(checkpoint *replicationcheckpoints.ReplicationCheckpoint) {
		if shard := i.ReplicationCheckpoints.KeyOf(checkpoint).Shard; checkpoint.Name == replicationcheckpoints.Name && i.Registered(shard) {
			cache.Note(shard, checkpoint.Comparable())
		}
	}
	i.ReplicationCheckpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(checkpoint *replicationcheckpoints.ReplicationCheckpoint, _ bool) { note(checkpoint) },
		OnUpdate: func(_, checkpoint *replicationcheckpoints.ReplicationCheckpoint) { note(checkpoint) },
	})
	cache.SetRemoved(func(shard string) bool { return !i.Registered(shard) })
}

func (i *Informers) checkpointed(self string) func() ([]string, error) {
	return func() ([]string, error) {
		if err := tenancy.ShardsSynced(i.Shards); err != nil {
			return nil, err
		}
		var checkpointed []string
		for _, shard := range i.Shards.Lister().Cluster(core.RootCluster).List(nil) {
			if shard.Name != self && tenancy.WritesCheckpoints(shard) {
				checkpointed = append(checkpointed, shard.Name)
			}
		}
		return checkpointed, nil
	}
}

// unlogged keeps the content of Secrets out of logs.
type unlogged struct{ client.Runner }

func (u unlogged) Run(ctx context.Context) error { return u.Runner.Run(request.WithoutBodies(ctx)) }

func add[R client.Runner](i *Informers, r R) R {
	i.runners = append(i.runners, r)
	return r
}

func save[T client.Object](i *Informers, informer *client.Informer[T]) *client.Informer[T] {
	i.saved = append(i.saved, replicas.NewSaved(informer))
	return informer
}

// reports returns the reports of all shards on the cache server.
func reports[T client.Object, L runtime.Object](i *Informers, s Sources, resource client.Resource[T, L]) *client.Informer[T] {
	return save(i, add(i, resource.Informer(s.replicas(), client.InformerOptions[T]{})))
}

// hooks is dual for a resource whose objects a controller annotates for replication.
func hooks[T client.Object, L runtime.Object](i *Informers, s Sources, resource client.Resource[T, L]) *replicas.Dual[T] {
	all := dual(i, s, resource, false, nil)
	i.hooks[resource.Resource] = func(c replicationreasons.Config) reconcile.Made {
		return reconcile.Made{Runnable: replicationreasons.NewHooks(c, resource, all.Own()), Needs: []reconcile.Synced{all.Own(), c.APIExports, c.WorkspaceTypes}}
	}
	return all
}

// local returns the objects of all logical clusters of the shard.
func local[T client.Object, L runtime.Object](i *Informers, s Sources, resource client.Resource[T, L], indexers indexes[T]) *client.Informer[T] {
	return add(i, resource.Informer(s.Local.Wildcard(), client.InformerOptions[T]{Indexers: indexers}))
}

// dual returns the objects of the shard and of other shards. The latter are read from the cache server, or from the root
// shard if there is no cache server and fromRoot is set.
func dual[T client.Object, L runtime.Object](i *Informers, s Sources, resource client.Resource[T, L], fromRoot bool, indexers indexes[T]) *replicas.Dual[T] {
	own := resource.Informer(s.Local.Wildcard(), client.InformerOptions[T]{Indexers: indexers})
	var others *client.Informer[T]
	options := replicas.OfOthers(s.ShardName, client.InformerOptions[T]{Name: resource.GroupResource().String() + " of other shards", Indexers: indexers})
	switch {
	case s.Cache != nil:
		others = save(i, resource.Informer(s.replicas(), options))
	case fromRoot && !s.isRoot():
		others = resource.Informer(s.Root.Wildcard(), options)
	}
	return add(i, newDual(i, s, own, others))
}

// newDual combines the informers; others may be nil.
func newDual[T client.Object](i *Informers, s Sources, own, others *client.Informer[T]) *replicas.Dual[T] {
	options := replicas.DualOptions{Owns: i.owns, ShardState: tenancy.ShardStateOf(i.Shards)}
	if s.Cache != nil {
		options.Checkpointed = i.checkpointed(s.ShardName)
	}
	return replicas.NewDual(own, others, options)
}

// clusters returns AllClusters. LogicalClusters was added before.
func (i *Informers) clusters(s Sources) *replicas.Dual[*corev1alpha1.LogicalCluster] {
	if s.Cache == nil {
		return newDual(i, s, i.LogicalClusters, nil)
	}
	others := kinds.LogicalClusters.Informer(s.replicas(), replicas.OfOthers(s.ShardName, client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Name: "logicalclusters.core.kcp.io of other shards", Transform: slimLogicalCluster,
	}))
	return newDual(i, s, i.LogicalClusters, save(i, add(i, others)))
}

func (i *Informers) schemas(s Sources) (*replicas.Dual[*metav1.PartialObjectMetadata], error) {
	resource := kinds.APIResourceSchemas.GroupVersionResource
	own, err := client.NewMetadataInformer(s.Local.Wildcard(), resource, client.InformerOptions[*metav1.PartialObjectMetadata]{Transform: slimSchema})
	if err != nil || s.Cache == nil {
		return newDual(i, s, own, nil), err
	}
	others, err := client.NewMetadataInformer(s.replicas(), resource, replicas.OfOthers(s.ShardName, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: slimReplica, Name: resource.GroupResource().String() + " of other shards",
	}))
	return newDual(i, s, own, others), err
}

// Replicas returns the informers of objects of other shards that the shard needs to start. They read from the cache server;
// without it, there are none. Schemas are not included, because bound schemas are copied.
func (i *Informers) Replicas() []snapshot.Source { return i.saved }

// Runners returns the informers to run in no particular order.
func (i *Informers) Runners() []client.Runner { return i.runners }

func (i *Informers) owns(cluster logicalcluster.Name) bool {
	_, err := i.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return err == nil
}

// Registered reports whether a Shard of that name exists in root according to the informer.
func (i *Informers) Registered(shard string) bool {
	return tenancy.ShardStateOf(i.Shards)(shard) != replicas.Removed
}

// Types looks up WorkspaceTypes.
func (i *Informers) Types() tenancy.TypeLookup {
	return tenancy.NewTypeLookup(i.LogicalClusters, i.WorkspaceTypes)
}

// TypesComplete returns nil if all required WorkspaceTypes have been observed, and a client.ErrIncomplete otherwise.
// The root shard owns the common types and does not depend on the types of other shards.
func (i *Informers) TypesComplete() error {
	err := i.WorkspaceTypes.Complete()
	if i.root && i.WorkspaceTypes.HasSynced() {
		return nil
	}
	return err
}

// slimLogicalCluster keeps the fields that authorization for a logical cluster of another shard needs.
func slimLogicalCluster(lc *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return &corev1alpha1.LogicalCluster{ObjectMeta: tenancy.Slim(&lc.ObjectMeta,
		request.ShardAnnotation, request.OriginalUIDAnnotation, request.OriginalVersionAnnotation, tenancy.RequiredGroupsAnnotation)}, nil
}

// slimServiceAccount keeps the fields that token validation needs, because each namespace has an account.
func slimServiceAccount(account *corev1.ServiceAccount) (*corev1.ServiceAccount, error) {
	return &corev1.ServiceAccount{ObjectMeta: tenancy.Slim(&account.ObjectMeta)}, nil
}

// slimReplica is slimSchema for schemas of other shards, with their original UIDs.
func slimReplica(schema *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	slim := &metav1.PartialObjectMetadata{ObjectMeta: tenancy.Slim(&schema.ObjectMeta, request.ShardAnnotation)}
	slim.UID = types.UID(schema.Annotations[request.OriginalUIDAnnotation])
	return slim, nil
}

func slimSchema(schema *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: tenancy.Slim(&schema.ObjectMeta)}, nil
}

// Hooks are the informers of webhooks and policies.
type Hooks struct {
	MutatingWebhooks   *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration]
	ValidatingWebhooks *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration]
	MutatingPolicies   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy]
	MutatingBindings   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding]
	ValidatingPolicies *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy]
	ValidatingBindings *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]
}
