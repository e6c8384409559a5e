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

// markedHooks are the controllers that mark webhooks and policies which other shards have
// to know.
func markedHooks() []reconcile.Descriptor[Deps] {
	return []reconcile.Descriptor[Deps]{
		markedHook(kinds.MutatingWebhookConfigurations, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.MutatingWebhookConfiguration] {
			return h.MutatingWebhooks
		}),
		markedHook(kinds.ValidatingWebhookConfigurations, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.ValidatingWebhookConfiguration] {
			return h.ValidatingWebhooks
		}),
		markedHook(kinds.MutatingAdmissionPolicies, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy] {
			return h.MutatingPolicies
		}),
		markedHook(kinds.MutatingAdmissionPolicyBindings, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding] {
			return h.MutatingBindings
		}),
		markedHook(kinds.ValidatingAdmissionPolicies, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy] {
			return h.ValidatingPolicies
		}),
		markedHook(kinds.ValidatingAdmissionPolicyBindings, func(h *Hooks) *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding] {
			return h.ValidatingBindings
		}),
	}
}

func markedHook[T client.Object, L runtime.Object](resource client.Resource[T, L], of func(*Hooks) *replicas.Dual[T]) reconcile.Descriptor[Deps] {
	return reconcile.Descriptor[Deps]{
		Name: replicationreasons.NameOf(resource.Resource), Placement: reconcile.OnLeader, Enabled: hasCache,
		New: func(d Deps) (reconcile.Made, error) {
			c, hooks := d.reasons(), of(&d.Informers.Hooks).Own()
			return after(replicationreasons.NewHooks(c, resource, hooks), hooks, c.APIExports, c.WorkspaceTypes), nil
		},
	}
}
