// Package controllers is the catalogue of the controllers of a shard and their dependencies. Each one is a package below; these
// packages do not import each other. To add a controller, add an entry to Catalogue and a line here.
//
//	namespace            deletes the content of namespaces that are being deleted
//	serviceaccount       creates default service accounts, and tokens in Secrets
//	rootca               creates the ConfigMap with the CA for verifying the servers in each namespace
//	aggregation          updates the rules of aggregated cluster roles
//	logicalcluster       creates the default bindings of logical clusters and makes them Ready; with a separate queue,
//	                     deletes the content of those that are being deleted
//	bootstrap            creates root and system:admin with their content
//	shardregistration    creates and updates the Shard of this shard in root
//	heartbeat            reports the liveness and load of this shard to the root shard
//	shardhealth          on the root shard, updates readiness and load of Shards
//	workspace            creates the logical clusters of Workspaces on a chosen shard; those that other shards request
//	                     are created by its controller placement
//	mount                updates the URL and phase of Workspaces that are mounts
//	customresourcedefinition
//	                     deletes the instances of deleted definitions, and assigns released names to waiting definitions
//	resourcequota        updates the usage of ResourceQuotas
//	garbagecollector     deletes objects without owners
//	policytypes          reports expressions of policies that do not match the types
//	apiexport            creates identities and default endpoint slices of APIExports
//	apibinding           binds the resources of exports, and deletes bound objects with the binding; converts and deletes
//	                     copies of schemas
//	identitycache        updates the ConfigMap with the identities of the exports of root
//	cachedresource, clustercachedresource
//	                     replicate the objects that cached resources select
//	exportuse            reports to other shards the exports that have consumers on this shard
//	endpointslice        updates the URLs of endpoint slices: the shards with consumers of the export
//	partitionset         creates a Partition for each combination of label values
//	workspacetype        updates the URLs of the virtual workspaces of WorkspaceTypes
//	replicationreasons   annotates the objects that other shards need with the reasons for replication
//	subtreeusage         reports to other shards the usage of limited workspace subtrees
//
// The controllers of pkg/replication, which replicate objects and observe checkpoints, are part of the catalogue, too.
package controllers

import (
	"slices"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/aggregation"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/controllers/apiexport"
	"github.com/shardplane/shardplane/pkg/controllers/bootstrap"
	"github.com/shardplane/shardplane/pkg/controllers/cachedresource"
	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
	"github.com/shardplane/shardplane/pkg/controllers/endpointslice"
	"github.com/shardplane/shardplane/pkg/controllers/exportuse"
	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	"github.com/shardplane/shardplane/pkg/controllers/heartbeat"
	"github.com/shardplane/shardplane/pkg/controllers/identitycache"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster/defaults"
	"github.com/shardplane/shardplane/pkg/controllers/mount"
	"github.com/shardplane/shardplane/pkg/controllers/namespace"
	"github.com/shardplane/shardplane/pkg/controllers/partitionset"
	"github.com/shardplane/shardplane/pkg/controllers/policytypes"
	"github.com/shardplane/shardplane/pkg/controllers/replicationreasons"
	"github.com/shardplane/shardplane/pkg/controllers/resourcequota"
	"github.com/shardplane/shardplane/pkg/controllers/rootca"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/controllers/shardhealth"
	"github.com/shardplane/shardplane/pkg/controllers/shardregistration"
	"github.com/shardplane/shardplane/pkg/controllers/subtreeusage"
	"github.com/shardplane/shardplane/pkg/controllers/workspace"
	"github.com/shardplane/shardplane/pkg/controllers/workspacetype"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/replication/push"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Catalogue returns all controllers of a shard in starting order. They run on the leader, unless each replica needs the result.
func Catalogue() []reconcile.Descriptor[Deps] {
	return append([]reconcile.Descriptor[Deps]{
		{Name: namespace.Name, Placement: reconcile.OnLeader, New: newNamespace},
		{Name: serviceaccount.Name, Placement: reconcile.OnLeader, New: newServiceAccount},
		{Name: serviceaccount.TokensName, Placement: reconcile.OnLeader, Enabled: func(d Deps) bool { return d.Tokens != nil }, New: newTokens},
		{Name: rootca.Name, Placement: reconcile.OnLeader, Enabled: func(d Deps) bool { return d.RootCA != nil }, New: newRootCA},
		{Name: aggregation.Name, Placement: reconcile.OnLeader, New: newAggregation},
		{Name: logicalcluster.Name, Placement: reconcile.OnLeader, New: newLogicalCluster},
		{Name: logicalcluster.DeletionName, Placement: reconcile.OnLeader, New: newDeletion},
		// A replica is ready after it has observed that bootstrapping is complete.
		{Name: bootstrap.Name, Placement: reconcile.OnEveryReplica, New: newBootstrap},
		{Name: shardregistration.Name, Placement: reconcile.OnLeader, New: newShardRegistration},
		{Name: heartbeat.Name, Placement: reconcile.OnLeader, New: newHeartbeat},
		{Name: shardhealth.Name, Placement: reconcile.OnLeader, Enabled: func(d Deps) bool { return d.isRoot() }, New: newShardHealth},
		{Name: workspace.Name, Placement: reconcile.OnLeader, New: newWorkspace},
		{Name: workspace.PlacementName, Placement: reconcile.OnLeader, New: newPlacement},
		{Name: mount.Name, Placement: reconcile.OnLeader, New: newMount},
		{Name: customresourcedefinition.Name, Placement: reconcile.OnLeader, New: newCustomResourceDefinition},
		{Name: resourcequota.Name, Placement: reconcile.OnLeader, New: newResourceQuota},
		{Name: garbagecollector.Name, Placement: reconcile.OnLeader, Enabled: func(d Deps) bool { return d.Garbage != nil }, New: newGarbageCollector},
		{Name: policytypes.Name, Placement: reconcile.OnLeader, New: newPolicyTypes},
		{Name: apiexport.Name, Placement: reconcile.OnLeader, New: newAPIExport},
		{Name: apibinding.Name, Placement: reconcile.OnLeader, New: newAPIBinding},
		{Name: apibinding.ConvertingName, Placement: reconcile.OnLeader, New: newAPIConversion},
		{Name: partitionset.Name, Placement: reconcile.OnLeader, New: newPartitionSet},
		{Name: workspacetype.Name, Placement: reconcile.OnLeader, New: newWorkspaceType},
		{Name: identitycache.Name, Placement: reconcile.OnLeader, New: newIdentityCache},
		{Name: exportuse.Name, Placement: reconcile.OnLeader, Enabled: hasCache, New: newExportUse},
		{Name: apibinding.UnpinningName, Placement: reconcile.OnLeader, New: newBoundSchemas},
		reasonsController(kinds.LogicalClusters.Resource, replicationreasons.NewLogicalClusters),
		reasonsController(kinds.ClusterRoles.Resource, replicationreasons.NewClusterRoles),
		reasonsController(kinds.ClusterRoleBindings.Resource, replicationreasons.NewClusterRoleBindings),
		reasonsController(kinds.WorkspaceAuthenticationConfigurations.Resource, replicationreasons.NewAuthenticationConfigurations),
		{Name: push.Name, Placement: reconcile.OnLeader, Enabled: hasCache, New: newReplication},
		// Each replica of a shard watches the cache server.
		{Name: health.ObserverName, Placement: reconcile.OnEveryReplica, Enabled: hasCache, New: newReplicationObserver},
		{Name: subtreeusage.Name, Placement: reconcile.OnLeader, Enabled: hasCache, New: newSubtreeUsage},
		{Name: endpointslice.OfExports.Name, Placement: reconcile.OnLeader, New: newEndpointSlice},
		{Name: endpointslice.OfCached.Name, Placement: reconcile.OnLeader, New: newCachedSlice},
		{Name: endpointslice.OfClusterCached.Name, Placement: reconcile.OnLeader, New: newClusterCachedSlice},
		{Name: cachedresource.Name, Placement: reconcile.OnLeader, New: newCachedResource(kinds.CachedResources)},
		{Name: cachedresource.ClusterName, Placement: reconcile.OnLeader, New: newCachedResource(kinds.ClusterCachedResources)},
	}, hookControllers()...)
}

func newCustomResourceDefinition(d Deps) (reconcile.Made, error) {
	return after(customresourcedefinition.NewCRDController(d.Definitions)), nil
}

func newNamespace(d Deps) (reconcile.Made, error) {
	i := d.Informers
	return after(namespace.NewNamespaceController(namespace.Config{
		Local: d.Local, Namespaces: i.Namespaces, LogicalClusters: i.LogicalClusters, Stored: d.Stored,
	}), i.Namespaces, i.LogicalClusters), nil
}

func newServiceAccount(d Deps) (reconcile.Made, error) {
	i := d.Informers
	return after(serviceaccount.NewServiceAccountController(d.Local, i.Namespaces, i.ServiceAccounts), i.Namespaces, i.ServiceAccounts), nil
}

func newRootCA(d Deps) (reconcile.Made, error) {
	configMaps := rootca.NewInformer(d.Local)
	namespaces := d.Informers.Namespaces
	return owning(after(rootca.NewRootCAController(d.Local, namespaces, configMaps, d.RootCA), namespaces), configMaps)
}

func newTokens(d Deps) (reconcile.Made, error) {
	i := d.Informers
	ca := func() []byte { return nil }
	if d.RootCA != nil {
		ca = d.RootCA.Content
	}
	return after(serviceaccount.NewTokens(serviceaccount.TokensConfig{
		Local: d.Local, Accounts: i.ServiceAccounts, Secrets: i.TokenSecrets, Issuer: d.Tokens, RootCA: ca,
	}), i.ServiceAccounts, i.TokenSecrets), nil
}

func newAggregation(d Deps) (reconcile.Made, error) {
	roles := d.Informers.RBAC.ClusterRoles.Own()
	return after(aggregation.NewClusterRoleAggregator(d.Local, roles), roles), nil
}

func (d Deps) logicalClusters() logicalcluster.Config {
	i := d.Informers
	return logicalcluster.Config{
		Local: d.Local, Objects: d.Objects, ExternalURL: d.ExternalURL, Stored: d.Stored, Unserved: d.Unserved, Unreadable: d.Unreadable,
		Bindings: d.Bindings, LogicalClusters: i.LogicalClusters, Namespaces: i.Namespaces, Workspaces: i.Workspaces,
		ClusterRoleBindings: i.RBAC.ClusterRoleBindings.Own(),
	}
}

func newLogicalCluster(d Deps) (reconcile.Made, error) {
	c, i := d.logicalClusters(), d.Informers
	c.Defaults = defaults.Config{
		Local: d.Local, LogicalClusters: i.LogicalClusters, Bindings: d.Bindings, Exports: i.APIExports, Resolve: d.Resolve,
		Binder: apibinding.NewBinder(d.APIs, d.Bindings), BindsSystem: d.BindsSystem,
		Types: i.Types(), TypesComplete: i.TypesComplete, WorkspaceTypes: i.WorkspaceTypes,
	}
	return after(logicalcluster.NewLogicalClusterController(c), c.LogicalClusters, c.Namespaces, c.Workspaces, c.ClusterRoleBindings, d.Bindings, i.APIExports, i.WorkspaceTypes), nil
}

func newDeletion(d Deps) (reconcile.Made, error) {
	c := d.logicalClusters()
	return after(logicalcluster.NewDeletion(c), c.LogicalClusters, c.Namespaces, c.Workspaces, c.Bindings), nil
}

func newBootstrap(d Deps) (reconcile.Made, error) {
	i := d.Informers
	c := bootstrap.Config{
		ShardName: d.ShardName, Local: d.Local, HomeCreators: d.HomeCreators, Done: d.Bootstrapped,
		LogicalClusters: i.LogicalClusters, WorkspaceTypes: i.WorkspaceTypes.Own(), APIExports: i.APIExports.Own(),
		ClusterRoles: i.RBAC.ClusterRoles.Own(), ClusterRoleBindings: i.RBAC.ClusterRoleBindings.Own(),
	}
	var owns []client.Runner
	if d.isRoot() {
		schemas, err := client.NewMetadataInformer(d.Local.Cluster(core.RootCluster.Path()), kinds.APIResourceSchemas.GroupVersionResource, client.InformerOptions[*metav1.PartialObjectMetadata]{
			Name: "schemas of root", Transform: slimSchema,
		})
		if err != nil {
			return reconcile.Made{}, err
		}
		c.Schemas, owns = schemas, append(owns, schemas)
	}
	controller, err := bootstrap.NewBootstrapController(c)
	made := after(controller, c.LogicalClusters, c.WorkspaceTypes, c.APIExports, c.ClusterRoles, c.ClusterRoleBindings)
	made.Owns = owns
	return made, err
}

func newWorkspace(d Deps) (reconcile.Made, error) {
	i := d.Informers
	made := after(workspace.NewWorkspaceController(workspace.Config{
		ShardName: d.ShardName, Local: d.Local, Objects: d.Objects, Peers: d.Peers, Metrics: d.Metrics,
		Workspaces: i.Workspaces, LogicalClusters: i.LogicalClusters, Shards: i.Shards, Types: i.Types(), WorkspaceTypes: i.WorkspaceTypes,
	}), i.Workspaces, i.LogicalClusters, i.Shards, i.WorkspaceTypes)
	if !d.isRoot() {
		// See Informers.TypesComplete.
		made.Needs = append(made.Needs, i.WorkspaceTypes.Others())
	}
	return made, nil
}

func newPlacement(d Deps) (reconcile.Made, error) {
	clusters := d.Informers.LogicalClusters
	return after(workspace.NewPlacement(workspace.Config{ShardName: d.ShardName, Peers: d.Peers, LogicalClusters: clusters, Metrics: d.Metrics}), clusters), nil
}

func newMount(d Deps) (reconcile.Made, error) {
	return after(mount.NewMountController(mount.Config{
		Local: d.Local, Workspaces: d.Informers.Workspaces, Bindings: d.Bindings, Store: d.Mounts,
	}), d.Informers.Workspaces, d.Bindings), nil
}

func newResourceQuota(d Deps) (reconcile.Made, error) {
	quotas := d.Informers.ResourceQuotas
	return after(resourcequota.NewResourceQuotaController(d.Local, quotas), quotas), nil
}

func newGarbageCollector(d Deps) (reconcile.Made, error) {
	return after(garbagecollector.NewGarbageCollector(*d.Garbage)), nil
}

func newPolicyTypes(d Deps) (reconcile.Made, error) {
	policies := kinds.ValidatingAdmissionPolicies.Informer(d.Local.Wildcard(), client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicy]{
		Name: "unchecked policies", Keep: policytypes.Unchecked,
	})
	return owning(after(policytypes.NewPolicyTypeController(d.Local, policies)), policies)
}

func newAPIExport(d Deps) (reconcile.Made, error) {
	exports, all := d.Informers.APIExports.Own(), d.Local.Wildcard()
	secrets, err := client.NewMetadataInformer(all, kinds.Secrets.GroupVersionResource, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Name: "secrets of exports", Keep: apiexport.NamedSecrets(exports),
	})
	if err != nil {
		return reconcile.Made{}, err
	}
	slices := d.Informers.EndpointSlices
	made := after(apiexport.NewAPIExportController(d.Local, exports, secrets, slices), exports, slices)
	return owning(made, secrets)
}

func newAPIBinding(d Deps) (reconcile.Made, error) {
	i := d.Informers
	schemas, err := i.schemas(d.Sources)
	if err != nil {
		return reconcile.Made{}, err
	}
	made := after(apibinding.NewAPIBindingController(apibinding.Config{
		Local: d.Local, Cache: d.Cache, Bindings: d.Bindings, Exports: i.APIExports, Schemas: schemas,
		Conversions: i.APIConversions, LogicalClusters: i.LogicalClusters, APIs: d.APIs, Resolve: d.Resolve,
	}), d.Bindings, i.APIExports, i.APIConversions, i.LogicalClusters)
	return owning(made, schemas)
}

func newPartitionSet(d Deps) (reconcile.Made, error) {
	sets := kinds.PartitionSets.Informer(d.Local.Wildcard(), client.InformerOptions[*topologyv1alpha1.PartitionSet]{})
	i := d.Informers
	made := after(partitionset.NewPartitionSetController(d.Local, sets, i.Partitions, i.Shards), i.Partitions, i.Shards)
	return owning(made, sets)
}

func newWorkspaceType(d Deps) (reconcile.Made, error) {
	types := d.Informers.WorkspaceTypes.Own()
	return after(workspacetype.NewWorkspaceTypeController(workspacetype.Config{Local: d.Local, Types: types, Shards: d.Informers.Shards}), types, d.Informers.Shards), nil
}

func newExportUse(d Deps) (reconcile.Made, error) {
	// This informer must report the actual content of the cache server. Those of d.Replicas retain lost objects.
	uses := exportuses.Uses.Informer(d.Cache.Shard(d.ShardName).Wildcard(), client.InformerOptions[*exportuses.ExportUse]{Name: exportuse.Name})
	return owning(after(exportuse.NewExportUseController(exportuse.Config{ShardName: d.ShardName, Cache: d.Cache, Uses: uses, Consumers: d.APIs}), d.Bindings), uses)
}

func newIdentityCache(d Deps) (reconcile.Made, error) {
	return after(identitycache.NewIdentityCacheController(d.Local, d.Informers.APIExports), d.Informers.APIExports), nil
}

func newBoundSchemas(d Deps) (reconcile.Made, error) {
	return after(apibinding.NewUnpinning(d.APIs.Unpin), d.Bindings), nil
}

func newAPIConversion(d Deps) (reconcile.Made, error) {
	i := d.Informers
	return after(apibinding.NewConverting(apibinding.Converting{Local: d.Local, Cache: d.Cache, Conversions: i.APIConversions, Convert: d.APIs.Convert}), i.APIConversions), nil
}

func newReplication(d Deps) (reconcile.Made, error) {
	controller, err := push.NewPushController(push.Config{Shard: d.ShardName, Local: d.Local, Cache: d.Cache, Table: d.Replicated, Metrics: d.Metrics})
	return after(controller), err
}

func newReplicationObserver(d Deps) (reconcile.Made, error) {
	return after(health.NewObserver(d.ShardName, d.Informers.ReplicationCheckpoints, d.Informers.Registered, d.Metrics)), nil
}

func newSubtreeUsage(d Deps) (reconcile.Made, error) {
	usages := subtrees.Usages.Informer(d.Cache.Shard(d.ShardName).Wildcard(), client.InformerOptions[*subtrees.SubtreeUsage]{Name: subtreeusage.Name}) // as in newExportUse
	return owning(after(subtreeusage.NewSubtreeUsageController(subtreeusage.Config{ShardName: d.ShardName, Cache: d.Cache, Usages: usages, Sums: d.Subtrees})), usages)
}

type cachedTable struct {
	*replication.Table
	of Publications
}

// Ensure implements cachedresource.Table. Only selected objects are replicated, unless an export has the identity.
func (t cachedTable) Ensure(resource schema.GroupVersionResource) error {
	return t.Table.Ensure(replication.Resource{
		GroupVersionResource: resource,
		Filter:               func(obj metav1.Object) bool { return t.of.Selects(resource.GroupResource(), obj) },
	})
}

func newCachedResource(resource client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]) func(Deps) (reconcile.Made, error) {
	return func(d Deps) (reconcile.Made, error) {
		i := d.Informers
		all := []*client.Informer[*cachev1alpha1.CachedResource]{i.CachedResources.Own(), i.ClusterCachedResources.Own()}
		config := cachedresource.Config{
			Resource: resource, Objects: all[0], All: all, Local: d.Local,
			Store: d.Cached.Store, Publications: d.Cached.Publications, Table: cachedTable{d.Replicated, d.Cached.Publications}, Limit: d.Cached.Limit, LimitBytes: d.Cached.LimitBytes,
		}
		if resource.Resource == kinds.ClusterCachedResources.Resource {
			config.Objects = all[1]
		}
		if d.Cache != nil {
			config.Cache = d.Cache.Shard(d.ShardName)
		}
		return after(cachedresource.NewCachedResourceController(config), all[0], all[1], i.LogicalClusters), nil
	}
}

func newEndpointSlice(d Deps) (reconcile.Made, error) {
	return ofSlices(d, endpointslice.OfExports, d.Informers.EndpointSlices, nil), nil
}

func newCachedSlice(d Deps) (reconcile.Made, error) {
	return ofSlices(d, endpointslice.OfCached, d.Informers.CachedSlices.Own(), d.Informers.CachedResources.Own()), nil
}

func newClusterCachedSlice(d Deps) (reconcile.Made, error) {
	return ofSlices(d, endpointslice.OfClusterCached, d.Informers.ClusterCachedSlices.Own(), d.Informers.ClusterCachedResources.Own()), nil
}

func ofSlices[T endpointslice.Slice](d Deps, kind endpointslice.Kind[T], slices *client.Informer[T], cached *client.Informer[*cachev1alpha1.CachedResource]) reconcile.Made {
	i := d.Informers
	made := after(endpointslice.NewEndpointSliceController(endpointslice.Config[T]{
		Kind: kind, ShardName: d.ShardName, Local: d.Local, Slices: slices, Cached: cached, Partitions: i.Partitions, Exports: i.APIExports,
		Shards: i.Shards, Uses: i.ExportUses, Consumers: d.APIs, Resolve: d.Resolve,
	}), slices, i.Partitions, i.APIExports, i.Shards, i.LogicalClusters, d.Bindings)
	if cached != nil {
		made.Needs = append(made.Needs, cached)
	}
	if i.ExportUses != nil {
		// Without the uses, all shards with consumers would be removed from the slices.
		made.Needs = append(made.Needs, i.ExportUses)
	}
	return made
}

func newShardRegistration(d Deps) (reconcile.Made, error) {
	return after(shardregistration.NewShardRegistrationController(shardregistration.Config{
		ShardName: d.ShardName, BaseURL: d.BaseURL, ExternalURL: d.ExternalURL, VirtualWorkspaceURL: d.VirtualWorkspaceURL,
		Root: d.rootShard().Cluster(core.RootCluster.Path()), Own: d.Informers.OwnShard, Checkpoints: d.Informers.ReplicationCheckpoints,
		Covers: func(checkpoint *replicationcheckpoints.ReplicationCheckpoint) bool {
			return !slices.ContainsFunc(replication.Defaults(), func(r replication.Resource) bool {
				_, named := checkpoint.Resources[r.GroupResource().String()]
				return !named
			})
		},
	}), d.Informers.OwnShard), nil
}

func newHeartbeat(d Deps) (reconcile.Made, error) {
	return after(heartbeat.NewHeartbeatController(heartbeat.Config{
		ShardName: d.ShardName, Root: d.rootShard().Cluster(core.RootCluster.Path()), Own: d.Informers.OwnShard, Load: d.Load, Done: d.Heartbeat,
	}), d.Informers.OwnShard), nil
}

func newShardHealth(d Deps) (reconcile.Made, error) {
	leases := shardhealth.NewInformer(d.Local)
	made := after(shardhealth.NewShardHealthController(shardhealth.Config{
		ShardName: d.ShardName, Local: d.Local, Objects: d.Objects, Shards: d.Informers.Shards, Leases: leases, Metrics: d.Metrics,
	}), d.Informers.Shards)
	return owning(made, leases)
}

// hookControllers returns the controllers that annotate webhooks and policies for replication.
func hookControllers() (all []reconcile.Descriptor[Deps]) {
	for _, resource := range []string{
		kinds.MutatingWebhookConfigurations.Resource, kinds.ValidatingWebhookConfigurations.Resource,
		kinds.MutatingAdmissionPolicies.Resource, kinds.MutatingAdmissionPolicyBindings.Resource,
		kinds.ValidatingAdmissionPolicies.Resource, kinds.ValidatingAdmissionPolicyBindings.Resource,
	} {
		all = append(all, reconcile.Descriptor[Deps]{
			Name: replicationreasons.NameOf(resource), Placement: reconcile.OnLeader, Enabled: hasCache,
			New: func(d Deps) (reconcile.Made, error) { return d.Informers.hooks[resource](d.reasons()), nil },
		})
	}
	return all
}

func reasonsController(resource string, controller func(replicationreasons.Config) *reconcile.Controller[client.Key]) reconcile.Descriptor[Deps] {
	return reconcile.Descriptor[Deps]{
		Name: replicationreasons.NameOf(resource), Placement: reconcile.OnLeader, Enabled: hasCache,
		New: func(d Deps) (reconcile.Made, error) {
			c := d.reasons()
			return after(controller(c), c.LogicalClusters, c.ClusterRoles, c.ClusterRoleBindings, c.APIExports, c.WorkspaceTypes, c.AuthenticationConfigurations), nil
		},
	}
}

func (d Deps) reasons() replicationreasons.Config {
	i := d.Informers
	return replicationreasons.Config{
		Local: d.Local, LogicalClusters: i.LogicalClusters,
		ClusterRoles: i.RBAC.ClusterRoles.Own(), ClusterRoleBindings: i.RBAC.ClusterRoleBindings.Own(),
		APIExports: i.APIExports.Own(), WorkspaceTypes: i.WorkspaceTypes.Own(), AuthenticationConfigurations: i.AuthenticationConfigurations.Own(),
	}
}
