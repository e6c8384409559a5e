package controllers

import (
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replicationreasons"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

func newReasons(controller func(replicationreasons.Config) *reconcile.Controller[client.Key]) func(Deps) (reconcile.Made, error) {
	return func(d Deps) (reconcile.Made, error) {
		c := d.reasons()
		return after(controller(c), c.LogicalClusters, c.ClusterRoles, c.ClusterRoleBindings, c.APIExports, c.WorkspaceTypes, c.AuthenticationConfigurations), nil
	}
}

// reasons is what the controllers need that mark what is replicated.
func (d Deps) reasons() replicationreasons.Config {
	i := d.Informers
	return replicationreasons.Config{
		Local: d.Local, LogicalClusters: i.LogicalClusters,
		ClusterRoles: i.RBAC.ClusterRoles.Own(), ClusterRoleBindings: i.RBAC.ClusterRoleBindings.Own(),
		APIExports: i.APIExports.Own(), WorkspaceTypes: i.WorkspaceTypes.Own(), AuthenticationConfigurations: i.AuthenticationConfigurations.Own(),
	}
}
