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
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Sources are the servers that a shard's controllers read from.
type Sources struct {
	// ShardName is the name of the shard.
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Root reaches the root shard, to read. The root shard leaves it out.
	Root *client.Factory
	// Cache reaches the cache server as it is, and Replicas is for informers of what other shards
	// have there, which keep what it has lost. If both are nil, there is no cache server, and what
	// other shards own is read from the root shard.
	Cache    *client.Factory
	Replicas *replicas.Cache
}

// isRoot reports whether the shard is the one that has the logical cluster root.
func (s Sources) isRoot() bool { return s.ShardName == corev1alpha1.RootShard }

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
		return s.Replicas.Factory().Shard(corev1alpha1.RootShard).Cluster(core.RootCluster.Path())
	}
	return s.rootShard().Cluster(core.RootCluster.Path())
}

// replicas is where what other shards have on the cache server is read.
func (s Sources) replicas() client.Scope {
	return s.Replicas.Factory().Shard(request.Wildcard).Wildcard()
}

// Informers is what a shard's controllers watch, shared among them.
type Informers struct {
	// LogicalClusters, Workspaces, Namespaces and ResourceQuotas are those of all
	// logical clusters of the shard.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// AllClusters are these and, where there is a cache server, those of other shards that
	// have exports or workspace types which others may use: of them, who may enter.
	AllClusters    *replicas.Dual[*corev1alpha1.LogicalCluster]
	Workspaces     *client.Informer[*tenancyv1alpha1.Workspace]
	Namespaces     *client.Informer[*corev1.Namespace]
	ResourceQuotas *client.Informer[*corev1.ResourceQuota]

	// APIExports are those of the shard, and of other shards where there is a cache
	// server.
	APIExports *replicas.Dual[*apisv1alpha2.APIExport]
	// APIConversions are those of the shard, and of others where there is a cache server.
	APIConversions *replicas.Dual[*apisv1alpha1.APIConversion]

	// CachedResources are those of the shard, and of others where there is a cache server, by each
	// of their names.
	CachedResources, ClusterCachedResources *replicas.Dual[*cachev1alpha1.CachedResource]

	// EndpointSlices and Partitions are those of all logical clusters of the shard.
	EndpointSlices *client.Informer[*apisv1alpha1.APIExportEndpointSlice]
	// CachedSlices and ClusterCachedSlices are the endpoint slices of cached resources.
	CachedSlices        *replicas.Dual[*cachev1alpha1.CachedResourceEndpointSlice]
	ClusterCachedSlices *replicas.Dual[*kinds.ClusterCachedResourceEndpointSlice]
	Partitions          *client.Informer[*topologyv1alpha1.Partition]

	// WorkspaceTypes are those of the shard, and what it can see of others'.
	WorkspaceTypes *replicas.Dual[*tenancyv1alpha1.WorkspaceType]
	// AuthenticationConfigurations are those of the shard, and of others those that
	// workspace types name.
	AuthenticationConfigurations *replicas.Dual[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]

	// ServiceAccounts are those of all logical clusters of the shard, and
	// TokenSecrets the secrets that are made for their tokens. Of both only what
	// tokens are checked against is kept.
	ServiceAccounts *client.Informer[*corev1.ServiceAccount]
	TokenSecrets    *client.Informer[*corev1.Secret]

	// RBAC are the roles and bindings of all logical clusters of the shard, and,
	// where there is a cache server, the cluster roles and bindings that shards
	// share.
	RBAC rbac.Informers

	// Hooks are the webhooks and policies of all logical clusters of the shard, and of
	// those of others that export APIs, where there is a cache server.
	Hooks Hooks

	// Shards are those that are registered in root.
	Shards *client.Informer[*corev1alpha1.Shard]
	// OwnShard has the Shard of this shard, as the root shard has it. On the
	// root shard it is Shards.
	OwnShard *client.Informer[*corev1alpha1.Shard]

	// SubtreeUsages are what shards tell each other of limited subtrees; nil where
	// there is no cache server.
	SubtreeUsages *client.Informer[*subtrees.SubtreeUsage]

	// ExportUses are what shards tell each other of the exports that they have consumers
	// of; nil where there is no cache server.
	ExportUses *client.Informer[*exportuses.ExportUse]

	// ReplicationCheckpoints are what shards tell each other of how much of their objects is on the
	// cache server; nil where there is none.
	ReplicationCheckpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]

	// root is set on the root shard.
	root    bool
	runners []client.Runner
}

// NewInformers makes the informers; run those that Runners returns.
func NewInformers(s Sources) *Informers {
	all := s.Local.Wildcard()
	i := &Informers{root: s.isRoot()}
	i.LogicalClusters = add(i, kinds.LogicalClusters.Informer(all, client.InformerOptions[*corev1alpha1.LogicalCluster]{
		// There are many. In pages the JSON of many is written and read at once.
		DisableWatchList: true,
		Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{
			tenancy.PathIndex:    tenancy.IndexByPath,
			tenancy.TypeIndex:    tenancy.IndexByType,
			workspace.OwnerIndex: workspace.IndexByOwner,
			subtrees.Index:       subtrees.IndexLimited,
		},
	}))
	i.Workspaces = add(i, kinds.Workspaces.Informer(all, client.InformerOptions[*tenancyv1alpha1.Workspace]{}))
	i.Namespaces = add(i, kinds.Namespaces.Informer(all, client.InformerOptions[*corev1.Namespace]{}))
	i.ResourceQuotas = add(i, kinds.ResourceQuotas.Informer(all, client.InformerOptions[*corev1.ResourceQuota]{}))
	i.ServiceAccounts = add(i, kinds.ServiceAccounts.Informer(all, client.InformerOptions[*corev1.ServiceAccount]{
		Transform: slimServiceAccount,
	}))
	i.TokenSecrets = kinds.Secrets.Informer(all, client.InformerOptions[*corev1.Secret]{
		Name:          "token secrets",
		FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String(),
		Indexers:      map[string]client.IndexFunc[*corev1.Secret]{serviceaccount.AccountIndex: serviceaccount.IndexByAccount},
	})
	add(i, unlogged{i.TokenSecrets})
	i.Shards = add(i, kinds.Shards.Informer(s.rootCluster(), client.InformerOptions[*corev1alpha1.Shard]{
		Name: "shards@root", Transform: replicas.ShowDeletion[*corev1alpha1.Shard],
	}))
	i.OwnShard = i.Shards
	if !s.isRoot() {
		i.OwnShard = add(i, kinds.Shards.Informer(s.Root.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{
			Name:          "own shard@root",
			FieldSelector: fields.OneTermEqualSelector("metadata.name", s.ShardName).String(),
		}))
	}
	i.AllClusters = i.clusters(s)
	i.WorkspaceTypes = add(i, dual(i, s, kinds.WorkspaceTypes, true, client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{
		Indexers: map[string]client.IndexFunc[*tenancyv1alpha1.WorkspaceType]{tenancy.PathIndex: tenancy.IndexTypeByPath},
	}))
	i.AuthenticationConfigurations = add(i, dual(i, s, kinds.WorkspaceAuthenticationConfigurations, true, client.InformerOptions[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]{}))
	i.APIExports = add(i, dual(i, s, kinds.APIExports, false, client.InformerOptions[*apisv1alpha2.APIExport]{
		Indexers: map[string]client.IndexFunc[*apisv1alpha2.APIExport]{
			apiexport.SecretIndex: apiexport.IndexBySecret, apibinding.SchemaIndex: apibinding.IndexBySchema, apis.PathIndex: apis.IndexByPath,
			apis.IdentityIndex: apis.IndexByIdentity,
		},
	}))
	i.APIConversions = add(i, dual(i, s, kinds.APIConversions, false, client.InformerOptions[*apisv1alpha1.APIConversion]{}))
	i.RBAC = rbac.Informers{
		Roles:        add(i, kinds.Roles.Informer(all, client.InformerOptions[*rbacv1.Role]{})),
		RoleBindings: add(i, kinds.RoleBindings.Informer(all, client.InformerOptions[*rbacv1.RoleBinding]{})),
		ClusterRoles: add(i, dual(i, s, kinds.ClusterRoles, false, client.InformerOptions[*rbacv1.ClusterRole]{
			Indexers: map[string]client.IndexFunc[*rbacv1.ClusterRole]{replicationreasons.RuleIndex: replicationreasons.IndexByRule},
		})),
		ClusterRoleBindings: add(i, dual(i, s, kinds.ClusterRoleBindings, false, client.InformerOptions[*rbacv1.ClusterRoleBinding]{
			Indexers: map[string]client.IndexFunc[*rbacv1.ClusterRoleBinding]{
				replicationreasons.RoleIndex: replicationreasons.IndexByRole, replicationreasons.SubjectIndex: replicationreasons.IndexBySubject,
			},
		})),
	}
	i.followCached(s)
	i.Partitions = add(i, kinds.Partitions.Informer(all, client.InformerOptions[*topologyv1alpha1.Partition]{}))
	if s.Cache != nil {
		i.ExportUses = add(i, exportuses.Uses.Informer(s.replicas(), client.InformerOptions[*exportuses.ExportUse]{}))
		i.ReplicationCheckpoints = add(i, replicationcheckpoints.Checkpoints.Informer(s.replicas(), client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{}))
		i.SubtreeUsages = add(i, subtrees.Usages.Informer(s.replicas(), client.InformerOptions[*subtrees.SubtreeUsage]{}))
	}
	i.Hooks = newHooks(i, s)
	if s.Cache != nil {
		i.followMarks(s.Replicas)
	}
	return i
}

// followCached adds endpoint slices and cached resources, which have two names each.
func (i *Informers) followCached(s Sources) {
	all := s.Local.Wildcard()
	i.EndpointSlices = add(i, kinds.APIExportEndpointSlices.Informer(all, client.InformerOptions[*apisv1alpha1.APIExportEndpointSlice]{
		Indexers: map[string]client.IndexFunc[*apisv1alpha1.APIExportEndpointSlice]{endpointslice.ExportIndex: endpointslice.OfExports.IndexByExport},
	}))
	i.CachedSlices = add(i, dual(i, s, kinds.CachedResourceEndpointSlices, false, client.InformerOptions[*cachev1alpha1.CachedResourceEndpointSlice]{
		Indexers: map[string]client.IndexFunc[*cachev1alpha1.CachedResourceEndpointSlice]{endpointslice.ExportIndex: endpointslice.OfCached.IndexByExport},
	}))
	i.ClusterCachedSlices = add(i, dual(i, s, kinds.ClusterCachedResourceEndpointSlices, false, client.InformerOptions[*kinds.ClusterCachedResourceEndpointSlice]{
		Indexers: map[string]client.IndexFunc[*kinds.ClusterCachedResourceEndpointSlice]{endpointslice.ExportIndex: endpointslice.OfClusterCached.IndexByExport},
	}))
	i.CachedResources = add(i, dual(i, s, kinds.CachedResources, false, client.InformerOptions[*cachev1alpha1.CachedResource]{}))
	i.ClusterCachedResources = add(i, dual(i, s, kinds.ClusterCachedResources, false, client.InformerOptions[*cachev1alpha1.CachedResource]{}))
}

// followMarks has those who read replicas know what shards say of them, and which were removed.
func (i *Informers) followMarks(cache *replicas.Cache) {
	note := func(mark *replicationcheckpoints.ReplicationCheckpoint) {
		if shard := i.ReplicationCheckpoints.KeyOf(mark).Shard; mark.Name == replicationcheckpoints.Name && i.Registered(shard) {
			cache.Note(shard, mark.Said())
		}
	}
	i.ReplicationCheckpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(mark *replicationcheckpoints.ReplicationCheckpoint, _ bool) { note(mark) },
		OnUpdate: func(_, mark *replicationcheckpoints.ReplicationCheckpoint) { note(mark) },
	})
	cache.SetRemoved(func(shard string) bool { return !i.Registered(shard) })
}

// marked returns the other shards that leave marks.
func (i *Informers) marked(self string) func() ([]string, error) {
	return func() ([]string, error) {
		if err := tenancy.ShardsSynced(i.Shards); err != nil {
			return nil, err
		}
		var marked []string
		for _, shard := range i.Shards.Lister().Cluster(core.RootCluster).List(nil) {
			if shard.Name != self && tenancy.WritesCheckpoints(shard) {
				marked = append(marked, shard.Name)
			}
		}
		return marked, nil
	}
}

// unlogged is an informer of secrets, which are in no log.
type unlogged struct{ client.Runner }

// Run implements client.Runner.
func (u unlogged) Run(ctx context.Context) error {
	return u.Runner.Run(request.WithoutBodies(ctx))
}

// add notes that an informer is to be run.
func add[R client.Runner](i *Informers, r R) R {
	i.runners = append(i.runners, r)
	return r
}

// dual makes the view of what the shard has of a resource and of what others have:
// on the cache server, or, if fromRoot is set and there is no cache server, in the
// root shard.
func dual[T client.Object, L runtime.Object](i *Informers, s Sources, resource client.Resource[T, L], fromRoot bool, options client.InformerOptions[T]) *replicas.Dual[T] {
	own := resource.Informer(s.Local.Wildcard(), options)
	var others *client.Informer[T]
	options.Name = resource.GroupResource().String() + " of other shards"
	options = replicas.OfOthers(s.ShardName, options)
	switch {
	case s.Cache != nil:
		others = resource.Informer(s.replicas(), options)
	case fromRoot && !s.isRoot():
		others = resource.Informer(s.Root.Wildcard(), options)
	}
	return view(i, s, own, others)
}

// view is what the shard has of a resource, and what others have, who may be nil.
func view[T client.Object](i *Informers, s Sources, own, others *client.Informer[T]) *replicas.Dual[T] {
	options := replicas.DualOptions{Owns: i.holds, ShardState: tenancy.ShardStateOf(i.Shards)}
	if s.Cache != nil {
		options.Checkpointed = i.marked(s.ShardName)
	}
	return replicas.NewDual(own, others, options)
}

// clusters is the view of LogicalClusters. Those of the shard are run already.
func (i *Informers) clusters(s Sources) *replicas.Dual[*corev1alpha1.LogicalCluster] {
	if s.Cache == nil {
		return view(i, s, i.LogicalClusters, nil)
	}
	others := kinds.LogicalClusters.Informer(s.replicas(), replicas.OfOthers(s.ShardName, client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Name: "logicalclusters.core.kcp.io of other shards", Transform: slimLogicalCluster,
	}))
	return view(i, s, i.LogicalClusters, add(i, others))
}

// schemas is the view of the metadata of APIResourceSchemas.
func (i *Informers) schemas(s Sources) (*replicas.Dual[*metav1.PartialObjectMetadata], error) {
	resource := kinds.APIResourceSchemas.GroupVersionResource
	own, err := client.NewMetadataInformer(s.Local.Wildcard(), resource, client.InformerOptions[*metav1.PartialObjectMetadata]{Transform: slimSchema})
	if err != nil || s.Cache == nil {
		return view(i, s, own, nil), err
	}
	others, err := client.NewMetadataInformer(s.replicas(), resource, replicas.OfOthers(s.ShardName, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: slimReplica, Name: resource.GroupResource().String() + " of other shards",
	}))
	return view(i, s, own, others), err
}

// Replicas returns the informers of what other shards own that the shard cannot do
// without when it starts: what is bound, by whose rules, and who uses it. They read from the cache
// server; there are none where that is left out. Schemas are not among them: what is bound
// is copied.
func (i *Informers) Replicas() []snapshot.Source {
	var all []snapshot.Source
	if i.ExportUses == nil {
		return nil
	}
	all = append(all, replicas.NewSaved(i.ReplicationCheckpoints)) // first: what is saved after it covers these
	if !i.root {
		all = append(all, replicas.NewSaved(i.Shards)) // those that count
	}
	return append(all,
		replicas.NewSaved(i.AllClusters.Others()),
		replicas.NewSaved(i.WorkspaceTypes.Others()), replicas.NewSaved(i.AuthenticationConfigurations.Others()),
		replicas.NewSaved(i.RBAC.ClusterRoles.Others()), replicas.NewSaved(i.RBAC.ClusterRoleBindings.Others()),
		replicas.NewSaved(i.APIExports.Others()), replicas.NewSaved(i.APIConversions.Others()), replicas.NewSaved(i.ExportUses), replicas.NewSaved(i.SubtreeUsages),
		replicas.NewSaved(i.CachedSlices.Others()), replicas.NewSaved(i.ClusterCachedSlices.Others()),
		replicas.NewSaved(i.CachedResources.Others()), replicas.NewSaved(i.ClusterCachedResources.Others()),
		replicas.NewSaved(i.Hooks.MutatingWebhooks.Others()), replicas.NewSaved(i.Hooks.ValidatingWebhooks.Others()),
		replicas.NewSaved(i.Hooks.MutatingPolicies.Others()), replicas.NewSaved(i.Hooks.MutatingBindings.Others()),
		replicas.NewSaved(i.Hooks.ValidatingPolicies.Others()), replicas.NewSaved(i.Hooks.ValidatingBindings.Others()))
}

// Runners returns the informers to run, each once, in an order of no meaning.
func (i *Informers) Runners() []client.Runner { return i.runners }

// holds reports whether the shard is known to hold a logical cluster.
func (i *Informers) holds(cluster logicalcluster.Name) bool {
	_, err := i.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return err == nil
}

// Registered reports whether there is a Shard of that name in root, as far as
// this shard knows.
func (i *Informers) Registered(shard string) bool {
	return tenancy.ShardStateOf(i.Shards)(shard) != replicas.Removed
}

// Types finds the types of Workspaces of the shard.
func (i *Informers) Types() tenancy.TypeLookup {
	return tenancy.NewTypeLookup(i.LogicalClusters, i.WorkspaceTypes)
}

// TypesComplete returns nil when the shard knows all types of Workspaces that it
// needs, and otherwise a client.ErrIncomplete. The root shard has the types that
// everybody uses itself, and does without the others for as long as it has to.
func (i *Informers) TypesComplete() error {
	err := i.WorkspaceTypes.Complete()
	if i.root && i.WorkspaceTypes.HasSynced() {
		return nil
	}
	return err
}

// slimLogicalCluster keeps what says who may enter a logical cluster of another shard.
func slimLogicalCluster(lc *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	slim := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: lc.Name, UID: lc.UID, ResourceVersion: lc.ResourceVersion, CreationTimestamp: lc.CreationTimestamp,
		DeletionTimestamp: lc.DeletionTimestamp, Annotations: map[string]string{},
	}}
	for _, key := range []string{
		logicalcluster.AnnotationKey, request.ShardAnnotation, request.OriginalUIDAnnotation, request.OriginalVersionAnnotation, tenancy.RequiredGroupsAnnotation,
	} {
		if value, ok := lc.Annotations[key]; ok {
			slim.Annotations[key] = value
		}
	}
	return slim, nil
}

// slimServiceAccount keeps what is needed to validate a token: there is
// an account in every namespace.
func slimServiceAccount(account *corev1.ServiceAccount) (*corev1.ServiceAccount, error) {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Name: account.Name, Namespace: account.Namespace, UID: account.UID, ResourceVersion: account.ResourceVersion,
		DeletionTimestamp: account.DeletionTimestamp,
		Annotations:       map[string]string{logicalcluster.AnnotationKey: account.Annotations[logicalcluster.AnnotationKey]},
	}}, nil
}

// slimReplica keeps what tells schemas of other shards apart: the UIDs that they have
// there.
func slimReplica(schema *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	slim, err := slimSchema(schema)
	slim.UID = types.UID(schema.Annotations[request.OriginalUIDAnnotation])
	slim.Annotations[request.ShardAnnotation] = schema.Annotations[request.ShardAnnotation]
	return slim, err
}

// slimSchema keeps what tells schemas apart.
func slimSchema(schema *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: schema.Name, UID: schema.UID, ResourceVersion: schema.ResourceVersion, DeletionTimestamp: schema.DeletionTimestamp,
		Annotations: map[string]string{logicalcluster.AnnotationKey: schema.Annotations[logicalcluster.AnnotationKey]},
	}}, nil
}

// Hooks are webhooks and policies.
type Hooks struct {
	MutatingWebhooks   *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration]
	ValidatingWebhooks *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration]
	MutatingPolicies   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy]
	MutatingBindings   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding]
	ValidatingPolicies *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy]
	ValidatingBindings *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]
}

func newHooks(i *Informers, s Sources) Hooks {
	return Hooks{
		MutatingWebhooks:   add(i, dual(i, s, kinds.MutatingWebhookConfigurations, false, client.InformerOptions[*admissionregistrationv1.MutatingWebhookConfiguration]{})),
		ValidatingWebhooks: add(i, dual(i, s, kinds.ValidatingWebhookConfigurations, false, client.InformerOptions[*admissionregistrationv1.ValidatingWebhookConfiguration]{})),
		MutatingPolicies:   add(i, dual(i, s, kinds.MutatingAdmissionPolicies, false, client.InformerOptions[*admissionregistrationv1.MutatingAdmissionPolicy]{})),
		MutatingBindings:   add(i, dual(i, s, kinds.MutatingAdmissionPolicyBindings, false, client.InformerOptions[*admissionregistrationv1.MutatingAdmissionPolicyBinding]{})),
		ValidatingPolicies: add(i, dual(i, s, kinds.ValidatingAdmissionPolicies, false, client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicy]{})),
		ValidatingBindings: add(i, dual(i, s, kinds.ValidatingAdmissionPolicyBindings, false, client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]{})),
	}
}
