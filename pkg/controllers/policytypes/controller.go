// Package policytypes tells the authors of ValidatingAdmissionPolicies, in the
// status, which of their expressions do not fit the types that the policies
// match, as those are in the same logical cluster. It looks at each version of a
// policy once, and keeps nothing afterwards.
package policytypes

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// workers is few: compiling expressions takes processor time that requests
// need more urgently than authors need this. Logical clusters take turns with it.
const workers = 1

// Config is what the controller needs.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Policies are those of all logical clusters of the shard that are Unchecked.
	Policies *client.Informer[*admissionregistrationv1.ValidatingAdmissionPolicy]
}

// Unchecked reports whether the present version of a policy was not looked at.
func Unchecked(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	return policy.DeletionTimestamp == nil && policy.Generation > policy.Status.ObservedGeneration
}

// New returns the controller.
func New(config Config) *reconcile.Controller[client.Key] {
	r := &reconciler{
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
		Workers: workers,
		Sources: []reconcile.Source[client.Key]{reconcile.Keys(config.Policies)},
	})
}

type reconciler struct {
	get          func(key client.Key) (*admissionregistrationv1.ValidatingAdmissionPolicy, error)
	discover     func(key client.Key) (discovery.DiscoveryInterface, error)
	updateStatus func(ctx context.Context, key client.Key, policy *admissionregistrationv1.ValidatingAdmissionPolicy) error
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) error {
	policy, err := r.get(key)
	if apierrors.IsNotFound(err) {
		return nil // it was looked at, or is gone
	}
	if err != nil {
		return err
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
	if err := r.updateStatus(ctx, key, checked); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the status of policy %s: %w", key, err)
	}
	return nil
}

func (r *reconciler) check(ctx context.Context, key client.Key, policy *admissionregistrationv1.ValidatingAdmissionPolicy) ([]admissionregistrationv1.ExpressionWarning, error) {
	served, err := r.discover(key)
	if err != nil {
		return nil, err
	}
	// Both forget what they have learned with this call: the logical cluster may
	// never have a policy again.
	cached := memory.NewMemCacheClient(served)
	checker := validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: cached},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(cached),
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	return checkAll(ctx, checker, policy), nil
}
