package controllers

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replicationreasons"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// hookControllers returns the controllers that annotate webhooks and policies for replication.
func hookControllers() []reconcile.Descriptor[Deps] {
	return []reconcile.Descriptor[Deps]{
		hookController(kinds.MutatingWebhookConfigurations, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration] {
			return h.MutatingWebhooks
		}),
		hookController(kinds.ValidatingWebhookConfigurations, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration] {
			return h.ValidatingWebhooks
		}),
		hookController(kinds.MutatingAdmissionPolicies, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy] {
			return h.MutatingPolicies
		}),
		hookController(kinds.MutatingAdmissionPolicyBindings, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding] {
			return h.MutatingBindings
		}),
		hookController(kinds.ValidatingAdmissionPolicies, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy] {
			return h.ValidatingPolicies
		}),
		hookController(kinds.ValidatingAdmissionPolicyBindings, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding] {
			return h.ValidatingBindings
		}),
	}
}

func hookController[T client.Object, L runtime.Object](resource client.Resource[T, L], of func(*Hooks) *replicas.Dual[T]) reconcile.Descriptor[Deps] {
	return reconcile.Descriptor[Deps]{
		Name: replicationreasons.NameOf(resource.Resource), Placement: reconcile.OnLeader, Enabled: hasCache,
		New: func(d Deps) (reconcile.Made, error) {
			c, hooks := d.reasons(), of(&d.Informers.Hooks).Own()
			return after(replicationreasons.NewHooks(c, resource, hooks), hooks, c.APIExports, c.WorkspaceTypes), nil
		},
	}
}

func newReasons(controller func(replicationreasons.Config) *reconcile.Controller[client.Key]) func(Deps) (reconcile.Made, error) {
	return func(d Deps) (reconcile.Made, error) {
		c := d.reasons()
		return after(controller(c), c.LogicalClusters, c.ClusterRoles, c.ClusterRoleBindings, c.APIExports, c.WorkspaceTypes, c.AuthenticationConfigurations), nil
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
