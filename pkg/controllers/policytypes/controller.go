// Package policytypes reports expressions of ValidatingAdmissionPolicies that do not match the types in the same logical
// cluster, in the status of the policies. It checks each generation of a policy once and keeps no state.
package policytypes

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "policy-types"

// workers is low because compiling expressions takes CPU time that requests need more urgently.
const workers = 1

// Config configures the controller.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Policies contains the Unchecked policies of all logical clusters of the shard.
	Policies *client.Informer[*admissionregistrationv1.ValidatingAdmissionPolicy]
}

// Unchecked reports whether the current generation of a policy has not been checked.
func Unchecked(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	return policy.DeletionTimestamp == nil && policy.Generation > policy.Status.ObservedGeneration
}

// NewPolicyTypeController returns the controller.
func NewPolicyTypeController(config Config) *reconcile.Controller[client.Key] {
	r := &policyReconciler{
		get: config.Policies.Lister().Get,
		discover: func(key client.Key) (discovery.DiscoveryInterface, error) {
			return documents.Of(config.Local.Cluster(key.Cluster.Path()))
		},
		updateStatus: func(ctx context.Context, key client.Key, policy *admissionregistrationv1.ValidatingAdmissionPolicy) error {
			_, err := kinds.ValidatingAdmissionPolicies.In(config.Local.Cluster(key.Cluster.Path())).UpdateStatus(ctx, policy, metav1.UpdateOptions{})
			return err
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name,
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			return reconcile.Result{}, r.reconcile(ctx, key)
		},
		Workers: workers, Sources: []reconcile.Source[client.Key]{reconcile.Keys(config.Policies)},
	})
}

type policyReconciler struct {
	get          func(key client.Key) (*admissionregistrationv1.ValidatingAdmissionPolicy, error)
	discover     func(key client.Key) (discovery.DiscoveryInterface, error)
	updateStatus func(ctx context.Context, key client.Key, policy *admissionregistrationv1.ValidatingAdmissionPolicy) error
}

func (r *policyReconciler) reconcile(ctx context.Context, key client.Key) error {
	policy, err := r.get(key)
	if err != nil {
		return reconcile.IgnoreNotFound(err)
	}
	checked := policy.DeepCopy()
	checked.Status.ObservedGeneration = policy.Generation
	warnings := tooMuch(policy)
	if len(warnings) == 0 {
		if warnings, err = r.check(ctx, key, policy); err != nil {
			return err
		}
	}
	checked.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: warnings}
	if err := reconcile.IgnoreNotFound(r.updateStatus(ctx, key, checked)); err != nil {
		return fmt.Errorf("writing the status of policy %s: %w", key, err)
	}
	return nil
}

func (r *policyReconciler) check(ctx context.Context, key client.Key, policy *admissionregistrationv1.ValidatingAdmissionPolicy) ([]admissionregistrationv1.ExpressionWarning, error) {
	served, err := r.discover(key)
	if err != nil {
		return nil, err
	}
	// The caches are discarded after the call, because the logical cluster may never have another policy.
	cached := memory.NewMemCacheClient(served)
	checker := validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: cached},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(cached),
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	return checkAll(ctx, checker, policy), nil
}
