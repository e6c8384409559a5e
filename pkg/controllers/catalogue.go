// Package controllers is the catalogue of what a shard's controllers are and
// what they need. Each controller has its own package below; they know nothing
// of each other. A new one needs an entry in Catalogue and a line here, and nothing
// else outside of its package.
//
//	namespace           namespaces that are deleted are emptied
//	serviceaccount      namespaces have a default service account, and secrets for
//	                    tokens have a token
//	rootca              namespaces have a ConfigMap with the CA that clients verify the
//	                    servers with
//	aggregation         cluster roles that aggregate others have their rules
//	logicalcluster      logical clusters have the bindings that their type says and
//	                    become Ready, and, with a queue of its own, are emptied when
//	                    deleted
//	bootstrap           root and system:admin exist, with all that belongs to them
//	shardregistration   this shard's Shard object in root is right
//	heartbeat           root's shard hears that this shard lives, and how much it holds
//	shardhealth         on root's shard, Shards report whether they are ready, and their load
//	workspace           workspaces get a logical cluster on some shard, those of
//	                    other shards by its controller placement
//	mount               workspaces that are mounts lead where the mounted object says
//	customresourcedefinition
//	                    definitions that are deleted go with their instances, and
//	                    names that became free are given to those who wait
//	resourcequota       quotas say what is used
//	garbagecollector    objects are deleted whose owners are gone
//	policytypes         policies say which of their expressions do not fit their types
//	apiexport           exports of APIs have an identity and a default endpoint slice
//	apibinding          bindings bind what their exports offer, and are emptied when
//	                    deleted; copies of schemas follow the rules between their
//	                    versions, and go when nothing binds them any more
//	identitycache       a ConfigMap has the identities of what root exports
//	                    with a mark that says up to where; an observer measures how
//	                    old the marks of others are
//	cachedresource, clustercachedresource
//	                    what cached resources select is replicated as well
//	exportuse           other shards know whose exports this one has consumers of
//	endpointslice       endpoint slices say on which shards their exports have consumers
//	partitionset        sets of partitions have one for each combination of labels
//	workspacetype       types of workspaces say where their views are
//	replicationreasons  what other shards must know is marked, by what it says
//	subtreeusage        so is what this shard stores of workspaces whose subtrees are
//	                    limited
package controllers

import (
	"slices"

	"github.com/kcp-dev/sdk/apis/core"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/aggregation"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/controllers/apiexport"
	"github.com/shardplane/shardplane/pkg/controllers/bootstrap"
	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
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
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/replication/push"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Catalogue returns all controllers of a shard, in the order of starting. A
// controller's entry is all that a shard has to know of it. They run on the leader, except
// those whose work each replica needs for itself.
func Catalogue() []reconcile.Descriptor[Deps] {
	return slices.Concat([]reconcile.Descriptor[Deps]{
		{Name: namespace.Name, Placement: reconcile.OnLeader, New: newNamespace},
		{Name: serviceaccount.Name, Placement: reconcile.OnLeader, New: newServiceAccount},
		{
			Name:      serviceaccount.TokensName,
			Placement: reconcile.OnLeader,
			Enabled:   func(d Deps) bool { return d.Tokens != nil },
			New:       newTokens,
		},
		{Name: rootca.Name, Placement: reconcile.OnLeader, Enabled: func(d Deps) bool { return d.RootCA != nil }, New: newRootCA},
		{Name: aggregation.Name, Placement: reconcile.OnLeader, New: newAggregation},
		{Name: logicalcluster.Name, Placement: reconcile.OnLeader, New: newLogicalCluster},
		{Name: logicalcluster.DeletionName, Placement: reconcile.OnLeader, New: newDeletion},
		// A replica is ready when it has seen this done.
		{Name: bootstrap.Name, Placement: reconcile.OnEveryReplica, New: newBootstrap},
		{Name: shardregistration.Name, Placement: reconcile.OnLeader, New: newShardRegistration},
		{Name: heartbeat.Name, Placement: reconcile.OnLeader, New: newHeartbeat},
		{Name: shardhealth.Name, Placement: reconcile.OnLeader, Enabled: func(d Deps) bool { return d.isRoot() }, New: newShardHealth},
		{Name: workspace.Name, Placement: reconcile.OnLeader, New: newWorkspace},
		{Name: workspace.PlacementName, Placement: reconcile.OnLeader, New: newPlacement},
		{Name: mount.Name, Placement: reconcile.OnLeader, New: newMount},
		{Name: customresourcedefinition.Name, Placement: reconcile.OnLeader, New: newCustomResourceDefinition},
		{Name: resourcequota.Name, Placement: reconcile.OnLeader, New: newResourceQuota},
		{
			Name:      garbagecollector.Name,
			Placement: reconcile.OnLeader,
			Enabled:   func(d Deps) bool { return d.Garbage != nil },
			New:       newGarbageCollector,
		},
		{Name: policytypes.Name, Placement: reconcile.OnLeader, New: newPolicyTypes},
		{Name: apiexport.Name, Placement: reconcile.OnLeader, New: newAPIExport},
		{Name: apibinding.Name, Placement: reconcile.OnLeader, New: newAPIBinding},
		{Name: apibinding.ConvertingName, Placement: reconcile.OnLeader, New: newAPIConversion},
		{Name: partitionset.Name, Placement: reconcile.OnLeader, New: newPartitionSet},
		{Name: workspacetype.Name, Placement: reconcile.OnLeader, New: newWorkspaceType},
		{Name: identitycache.Name, Placement: reconcile.OnLeader, New: newIdentityCache},
		{Name: exportuse.Name, Placement: reconcile.OnLeader, Enabled: hasCache, New: newExportUse},
		{Name: apibinding.UnpinningName, Placement: reconcile.OnLeader, New: newBoundSchemas},
		{Name: replicationreasons.LogicalClustersName, Placement: reconcile.OnLeader, Enabled: hasCache, New: newReasons(replicationreasons.NewLogicalClusters)},
		{Name: replicationreasons.ClusterRolesName, Placement: reconcile.OnLeader, Enabled: hasCache, New: newReasons(replicationreasons.NewClusterRoles)},
		{Name: replicationreasons.ClusterRoleBindingsName, Placement: reconcile.OnLeader, Enabled: hasCache, New: newReasons(replicationreasons.NewClusterRoleBindings)},
		{Name: replicationreasons.AuthenticationConfigurationsName, Placement: reconcile.OnLeader, Enabled: hasCache, New: newReasons(replicationreasons.NewAuthenticationConfigurations)},
		{
			Name:      push.Name,
			Placement: reconcile.OnLeader,
			Enabled:   hasCache,
			New:       newReplication,
		},
		// Each replica of a shard follows the cache server by itself.
		{Name: health.ObserverName, Placement: reconcile.OnEveryReplica, Enabled: hasCache, New: newReplicationObserver},
		{
			Name:      subtreeusage.Name,
			Placement: reconcile.OnLeader,
			Enabled:   hasCache,
			New:       newSubtreeUsage,
		},
	}, endpointSlices(), cachedResources(), markedHooks())
}

func newCustomResourceDefinition(d Deps) (reconcile.Made, error) {
	return after(customresourcedefinition.New(d.Definitions)), nil
}

func newNamespace(d Deps) (reconcile.Made, error) {
	i := d.Informers
	return after(namespace.New(namespace.Config{
		Local: d.Local, Namespaces: i.Namespaces, LogicalClusters: i.LogicalClusters, Stored: d.Stored,
	}), i.Namespaces, i.LogicalClusters), nil
}

func newServiceAccount(d Deps) (reconcile.Made, error) {
	i := d.Informers
	return after(serviceaccount.New(serviceaccount.Config{
		Local: d.Local, Namespaces: i.Namespaces, Accounts: i.ServiceAccounts,
	}), i.Namespaces, i.ServiceAccounts), nil
}

func newRootCA(d Deps) (reconcile.Made, error) {
	configMaps := rootca.NewInformer(d.Local)
	made := after(rootca.New(rootca.Config{Local: d.Local, Namespaces: d.Informers.Namespaces, ConfigMaps: configMaps, CA: d.RootCA}), d.Informers.Namespaces)
	made.Owns = []client.Runner{configMaps}
	return made, nil
}

func newTokens(d Deps) (reconcile.Made, error) {
	i := d.Informers
	ca := func() []byte { return nil }
	if d.RootCA != nil {
		ca = d.RootCA.Content
	}
	return after(serviceaccount.NewTokens(serviceaccount.TokensConfig{
		Local: d.Local, Accounts: i.ServiceAccounts, Secrets: i.TokenSecrets,
		Issuer: d.Tokens, RootCA: ca,
	}), i.ServiceAccounts, i.TokenSecrets), nil
}

func newAggregation(d Deps) (reconcile.Made, error) {
	roles := d.Informers.RBAC.ClusterRoles.Own()
	return after(aggregation.New(aggregation.Config{Local: d.Local, ClusterRoles: roles}), roles), nil
}

// logicalClusters is what the controllers of logical clusters need.
func (d Deps) logicalClusters() logicalcluster.Config {
	return logicalcluster.Config{
		Local:           d.Local,
		Objects:         d.Objects,
		ExternalURL:     d.ExternalURL,
		Bindings:        d.Bindings,
		LogicalClusters: d.Informers.LogicalClusters,
		Namespaces:      d.Informers.Namespaces,
		Workspaces:      d.Informers.Workspaces,
		Stored:          d.Stored,
		Unserved:        d.Unserved,
		Unreadable:      d.Unreadable,

		ClusterRoleBindings: d.Informers.RBAC.ClusterRoleBindings.Own(),
	}
}

func newLogicalCluster(d Deps) (reconcile.Made, error) {
	c, i := d.logicalClusters(), d.Informers
	c.Defaults = defaults.Config{
		Local: d.Local, LogicalClusters: i.LogicalClusters, Bindings: d.Bindings, Exports: i.APIExports, Resolve: defaults.Resolve(d.Resolve),
		Binder: apibinding.NewBinder(d.APIs, d.Bindings), BindsSystem: d.BindsSystem,
		Types: i.Types(), TypesComplete: i.TypesComplete, WorkspaceTypes: i.WorkspaceTypes,
	}
	return after(logicalcluster.New(c), c.LogicalClusters, c.Namespaces, c.Workspaces, c.ClusterRoleBindings, d.Bindings, i.APIExports, i.WorkspaceTypes), nil
}

func newDeletion(d Deps) (reconcile.Made, error) {
	c := d.logicalClusters()
	return after(logicalcluster.NewDeletion(c), c.LogicalClusters, c.Namespaces, c.Workspaces, c.Bindings), nil
}

func newBootstrap(d Deps) (reconcile.Made, error) {
	c := bootstrap.Config{
		ShardName:       d.ShardName,
		Local:           d.Local,
		LogicalClusters: d.Informers.LogicalClusters,
		WorkspaceTypes:  d.Informers.WorkspaceTypes.Own(),
		APIExports:      d.Informers.APIExports.Own(),
		HomeCreators:    d.HomeCreators,
		Done:            d.Bootstrapped,

		ClusterRoles:        d.Informers.RBAC.ClusterRoles.Own(),
		ClusterRoleBindings: d.Informers.RBAC.ClusterRoleBindings.Own(),
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
	controller, err := bootstrap.New(c)
	made := after(controller, c.LogicalClusters, c.WorkspaceTypes, c.APIExports, c.ClusterRoles, c.ClusterRoleBindings)
	made.Owns = owns
	return made, err
}

func newWorkspace(d Deps) (reconcile.Made, error) {
	i := d.Informers
	made := after(workspace.New(workspace.Config{
		ShardName:       d.ShardName,
		Local:           d.Local,
		Objects:         d.Objects,
		Peers:           d.Peers,
		Workspaces:      i.Workspaces,
		LogicalClusters: i.LogicalClusters,
		Shards:          i.Shards,
		Types:           i.Types(),
		WorkspaceTypes:  i.WorkspaceTypes,
		Metrics:         d.Metrics,
	}), i.Workspaces, i.LogicalClusters, i.Shards, i.WorkspaceTypes)
	if !d.isRoot() {
		// As Informers.TypesComplete says.
		made.Needs = append(made.Needs, i.WorkspaceTypes.Others())
	}
	return made, nil
}

func newPlacement(d Deps) (reconcile.Made, error) {
	clusters := d.Informers.LogicalClusters
	return after(workspace.NewPlacement(workspace.PlacementConfig{ShardName: d.ShardName, Peers: d.Peers, LogicalClusters: clusters, Metrics: d.Metrics}), clusters), nil
}

func newMount(d Deps) (reconcile.Made, error) {
	return after(mount.New(mount.Config{
		Local: d.Local, Workspaces: d.Informers.Workspaces, Bindings: d.Bindings, Store: d.Mounts,
	}), d.Informers.Workspaces, d.Bindings), nil
}

func newResourceQuota(d Deps) (reconcile.Made, error) {
	quotas := d.Informers.ResourceQuotas
	return after(resourcequota.New(resourcequota.Config{Local: d.Local, Quotas: quotas}), quotas), nil
}

func newGarbageCollector(d Deps) (reconcile.Made, error) {
	return after(garbagecollector.New(*d.Garbage)), nil
}

func newPolicyTypes(d Deps) (reconcile.Made, error) {
	policies := kinds.ValidatingAdmissionPolicies.Informer(d.Local.Wildcard(), client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicy]{
		Name: "unchecked policies", Keep: policytypes.Unchecked,
	})
	made := after(policytypes.New(policytypes.Config{Local: d.Local, Policies: policies}))
	made.Owns = []client.Runner{policies}
	return made, nil
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
	made := after(apiexport.New(apiexport.Config{Local: d.Local, Exports: exports, Secrets: secrets, Slices: slices}), exports, slices)
	made.Owns = []client.Runner{secrets}
	return made, nil
}

func newAPIBinding(d Deps) (reconcile.Made, error) {
	i := d.Informers
	schemas, err := i.schemas(d.Sources)
	if err != nil {
		return reconcile.Made{}, err
	}
	made := after(apibinding.New(apibinding.Config{
		Local: d.Local, Cache: d.Cache, Bindings: d.Bindings, Exports: i.APIExports, Schemas: schemas,
		Conversions: i.APIConversions, LogicalClusters: i.LogicalClusters, APIs: d.APIs, Resolve: d.Resolve,
	}), d.Bindings, i.APIExports, i.APIConversions, i.LogicalClusters)
	made.Owns = []client.Runner{schemas}
	return made, nil
}

func newPartitionSet(d Deps) (reconcile.Made, error) {
	sets := kinds.PartitionSets.Informer(d.Local.Wildcard(), client.InformerOptions[*topologyv1alpha1.PartitionSet]{})
	i := d.Informers
	made := after(partitionset.New(partitionset.Config{Local: d.Local, Sets: sets, Partitions: i.Partitions, Shards: i.Shards}), i.Partitions, i.Shards)
	made.Owns = []client.Runner{sets}
	return made, nil
}

func newWorkspaceType(d Deps) (reconcile.Made, error) {
	types := d.Informers.WorkspaceTypes.Own()
	return after(workspacetype.New(workspacetype.Config{Local: d.Local, Types: types, Shards: d.Informers.Shards}), types, d.Informers.Shards), nil
}

func newExportUse(d Deps) (reconcile.Made, error) {
	// What the shard really has there: an informer of d.Replicas keeps what the cache server has lost.
	uses := exportuses.Uses.Informer(d.Cache.Shard(d.ShardName).Wildcard(), client.InformerOptions[*exportuses.ExportUse]{Name: exportuse.Name})
	made := after(exportuse.New(exportuse.Config{ShardName: d.ShardName, Cache: d.Cache, Uses: uses, Consumers: d.APIs}), d.Bindings)
	made.Owns = []client.Runner{uses}
	return made, nil
}

func newIdentityCache(d Deps) (reconcile.Made, error) {
	return after(identitycache.New(identitycache.Config{Local: d.Local, Exports: d.Informers.APIExports}), d.Informers.APIExports), nil
}

func newBoundSchemas(d Deps) (reconcile.Made, error) {
	return after(apibinding.NewUnpinning(d.APIs.Unpin), d.Bindings), nil
}

func newAPIConversion(d Deps) (reconcile.Made, error) {
	i := d.Informers
	return after(apibinding.NewConverting(apibinding.Converting{Local: d.Local, Cache: d.Cache, Conversions: i.APIConversions, Convert: d.APIs.Convert}), i.APIConversions), nil
}

func newReplication(d Deps) (reconcile.Made, error) {
	controller, err := push.New(push.Config{
		Shard: d.ShardName, Local: d.Local, Cache: d.Cache, Table: d.Replicated, Metrics: d.Metrics,
	})
	return after(controller), err
}

func newReplicationObserver(d Deps) (reconcile.Made, error) {
	return after(health.NewObserver(d.ShardName, d.Informers.ReplicationCheckpoints, d.Informers.Registered, d.Metrics)), nil
}

func newSubtreeUsage(d Deps) (reconcile.Made, error) {
	usages := subtrees.Usages.Informer(d.Cache.Shard(d.ShardName).Wildcard(), client.InformerOptions[*subtrees.SubtreeUsage]{Name: subtreeusage.Name}) // as in newExportUse
	made := after(subtreeusage.New(subtreeusage.Config{ShardName: d.ShardName, Cache: d.Cache, Usages: usages, Sums: d.Subtrees}))
	made.Owns = []client.Runner{usages}
	return made, nil
}
