package controllers

import (
	"fmt"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/aggregation"
	"github.com/shardplane/shardplane/pkg/controllers/bootstrap"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/controllers/namespace"
	"github.com/shardplane/shardplane/pkg/controllers/policytypes"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/controllers/resourcequota"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/controllers/shardregistration"
	"github.com/shardplane/shardplane/pkg/controllers/workspace"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Deps is what a shard gives its controllers.
type Deps struct {
	Sources
	// Informers are those that NewInformers made of the same Sources. Whoever
	// starts the controllers runs them.
	Informers *Informers
	// BaseURL is where other servers reach the shard, ExternalURL is where users
	// reach its logical clusters.
	BaseURL, ExternalURL string
	// OtherShards is how the shard authenticates with other shards, as
	// system:masters: a client configuration without a host.
	OtherShards *rest.Config
	// Tokens makes the tokens that are kept in secrets; nil where the shard makes
	// none. RootCA is what clients verify servers with, for those secrets.
	Tokens serviceaccount.Issuer
	RootCA func() []byte
	// Bootstrapped is called once, when everything exists that a shard starts
	// with; it may be nil.
	Bootstrapped func()
}

// dial makes the clients of another shard.
func (d Deps) dial(shard *corev1alpha1.Shard) (*client.Factory, error) {
	config := rest.CopyConfig(d.OtherShards)
	config.Host = shard.Spec.BaseURL
	factory, err := client.NewFactory(config)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", shard.Name, err)
	}
	return factory, nil
}

// logicalClusters is what the controllers of logical clusters need.
func (d Deps) logicalClusters() logicalcluster.Config {
	return logicalcluster.Config{
		Local:           d.Local,
		ExternalURL:     d.ExternalURL,
		LogicalClusters: d.Informers.LogicalClusters,
		Namespaces:      d.Informers.Namespaces,
		Workspaces:      d.Informers.Workspaces,

		ClusterRoleBindings: d.Informers.RBAC.ClusterRoleBindings,
	}
}

// Catalogue returns all controllers of a shard, in the order of starting.
func Catalogue() []reconcile.Descriptor[Deps] {
	return []reconcile.Descriptor[Deps]{
		{
			Name:      namespace.Name,
			Informers: func(d Deps) []reconcile.Synced { return []reconcile.Synced{d.Informers.Namespaces} },
			New:       newNamespace,
		},
		{
			Name: serviceaccount.Name,
			Informers: func(d Deps) []reconcile.Synced {
				return []reconcile.Synced{d.Informers.Namespaces, d.Informers.ServiceAccounts}
			},
			New: newServiceAccount,
		},
		{
			Name:    serviceaccount.TokensName,
			Enabled: func(d Deps) bool { return d.Tokens != nil },
			Informers: func(d Deps) []reconcile.Synced {
				return []reconcile.Synced{d.Informers.ServiceAccounts, d.Informers.TokenSecrets}
			},
			New: newTokens,
		},
		{
			Name:      aggregation.Name,
			Informers: func(d Deps) []reconcile.Synced { return []reconcile.Synced{d.Informers.RBAC.ClusterRoles} },
			New:       newAggregation,
		},
		{
			Name: logicalcluster.Name,
			Informers: func(d Deps) []reconcile.Synced {
				return []reconcile.Synced{d.Informers.LogicalClusters, d.Informers.Namespaces, d.Informers.RBAC.ClusterRoleBindings}
			},
			New: func(d Deps) (reconcile.Runnable, error) { return logicalcluster.New(d.logicalClusters()), nil },
		},
		{
			Name: logicalcluster.DeletionName,
			Informers: func(d Deps) []reconcile.Synced {
				return []reconcile.Synced{d.Informers.LogicalClusters, d.Informers.Namespaces, d.Informers.Workspaces}
			},
			New: func(d Deps) (reconcile.Runnable, error) { return logicalcluster.NewDeletion(d.logicalClusters()), nil },
		},
		{
			Name:      bootstrap.Name,
			Informers: bootstrapInformers,
			New:       newBootstrap,
			// A replica is ready when it has seen this done.
			EveryReplica: true,
		},
		{
			Name:      shardregistration.Name,
			Informers: func(d Deps) []reconcile.Synced { return []reconcile.Synced{d.Informers.OwnShard} },
			New:       newShardRegistration,
		},
		{
			Name:      workspace.Name,
			Informers: workspaceInformers,
			New:       newWorkspace,
		},
		{
			Name:      resourcequota.Name,
			Informers: func(d Deps) []reconcile.Synced { return []reconcile.Synced{d.Informers.ResourceQuotas} },
			New: func(d Deps) (reconcile.Runnable, error) {
				return resourcequota.New(resourcequota.Config{Local: d.Local, Quotas: d.Informers.ResourceQuotas}), nil
			},
		},
		{
			Name:      policytypes.Name,
			Informers: func(d Deps) []reconcile.Synced { return []reconcile.Synced{d.Informers.UncheckedPolicies} },
			New: func(d Deps) (reconcile.Runnable, error) {
				return policytypes.New(policytypes.Config{Local: d.Local, Policies: d.Informers.UncheckedPolicies}), nil
			},
		},
		{
			Name:      replication.Name,
			Enabled:   func(d Deps) bool { return d.Cache != nil },
			Informers: func(d Deps) []reconcile.Synced { return []reconcile.Synced{d.Informers.LogicalClusters} },
			New: func(d Deps) (reconcile.Runnable, error) {
				return replication.New(replication.Config{Shard: d.ShardName, Local: d.Local, Cache: d.Cache, LogicalClusters: d.Informers.LogicalClusters})
			},
		},
	}
}

func newNamespace(d Deps) (reconcile.Runnable, error) {
	return namespace.New(namespace.Config{Local: d.Local, Namespaces: d.Informers.Namespaces}), nil
}

func newServiceAccount(d Deps) (reconcile.Runnable, error) {
	return serviceaccount.New(serviceaccount.Config{
		Local: d.Local, Namespaces: d.Informers.Namespaces, Accounts: d.Informers.ServiceAccounts,
	}), nil
}

func newTokens(d Deps) (reconcile.Runnable, error) {
	return serviceaccount.NewTokens(serviceaccount.TokensConfig{
		Local: d.Local, Accounts: d.Informers.ServiceAccounts, Secrets: d.Informers.TokenSecrets,
		Issuer: d.Tokens, RootCA: d.RootCA,
	}), nil
}

func newAggregation(d Deps) (reconcile.Runnable, error) {
	return aggregation.New(aggregation.Config{Local: d.Local, ClusterRoles: d.Informers.RBAC.ClusterRoles}), nil
}

func bootstrapInformers(d Deps) []reconcile.Synced {
	return []reconcile.Synced{
		d.Informers.LogicalClusters, d.Informers.WorkspaceTypes, d.Informers.RBAC.ClusterRoles, d.Informers.RBAC.ClusterRoleBindings,
	}
}

func newBootstrap(d Deps) (reconcile.Runnable, error) {
	return bootstrap.New(bootstrap.Config{
		ShardName:       d.ShardName,
		Local:           d.Local,
		LogicalClusters: d.Informers.LogicalClusters,
		WorkspaceTypes:  d.Informers.WorkspaceTypes,
		Done:            d.Bootstrapped,

		ClusterRoles:        d.Informers.RBAC.ClusterRoles,
		ClusterRoleBindings: d.Informers.RBAC.ClusterRoleBindings,
	})
}

func newShardRegistration(d Deps) (reconcile.Runnable, error) {
	return shardregistration.New(shardregistration.Config{
		ShardName:   d.ShardName,
		BaseURL:     d.BaseURL,
		ExternalURL: d.ExternalURL,
		Root:        d.rootShard().Cluster(core.RootCluster.Path()),
		Own:         d.Informers.OwnShard,
	}), nil
}

func workspaceInformers(d Deps) []reconcile.Synced {
	synced := []reconcile.Synced{d.Informers.Workspaces, d.Informers.LogicalClusters, d.Informers.Shards, d.Informers.WorkspaceTypes}
	if !d.isRoot() {
		// The root shard has the types that everybody uses itself, and does
		// without the others for as long as it has to.
		synced = append(synced, d.Informers.OtherWorkspaceTypes)
	}
	return synced
}

func newWorkspace(d Deps) (reconcile.Runnable, error) {
	return workspace.New(workspace.Config{
		ShardName:       d.ShardName,
		Local:           d.Local,
		Dial:            d.dial,
		Workspaces:      d.Informers.Workspaces,
		LogicalClusters: d.Informers.LogicalClusters,
		Shards:          d.Informers.Shards,
		WorkspaceTypes:  d.Informers.workspaceTypes(),
	}), nil
}
