// Package policytypes reports expressions of ValidatingAdmissionPolicies that do not match the types in the same logical
// cluster, in the status of the policies. It checks each generation of a policy once and keeps no state.
package policytypes

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// Unchecked reports whether the current generation of a policy has not been checked.
func Unchecked(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	return policy.DeletionTimestamp == nil && policy.Generation > policy.Status.ObservedGeneration
}

// NewPolicyTypeController returns the controller. The informer contains the Unchecked policies of all logical clusters of the shard.
func NewPolicyTypeController(local *client.Factory, policies *client.Informer[*admissionregistrationv1.ValidatingAdmissionPolicy]) *reconcile.Controller[client.Key] {
	r := &policyReconciler{
		get: policies.Lister().Get,
		discover: func(key client.Key) (discovery.DiscoveryInterface, error) {
			return documents.Of(local.Cluster(key.Cluster.Path()))
		},
		updateStatus: func(ctx context.Context, key client.Key, policy *admissionregistrationv1.ValidatingAdmissionPolicy) error {
			_, err := kinds.ValidatingAdmissionPolicies.In(local.Cluster(key.Cluster.Path())).UpdateStatus(ctx, policy, metav1.UpdateOptions{})
			return err
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name,
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			return reconcile.Result{}, r.reconcile(ctx, key)
		},
		Workers: 1, // compiling expressions takes CPU time that requests need more urgently
		Sources: []reconcile.Source[client.Key]{reconcile.Keys(policies)},
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

// The checker does not observe a context, so an author could block the policies of others.
const (
	// budget limits the time for one policy. It is checked between expressions.
	//
	//reference:limit object | ValidatingAdmissionPolicy: time of the type check | a warning in its status
	budget = 5 * time.Second
	// maxVariables limits the variables of a policy, because each of them is compiled for each expression.
	//
	//reference:limit object | ValidatingAdmissionPolicy: variables in the type check | a warning in its status
	maxVariables = 100
	// maxResources limits the matching combinations of groups, versions and resources, because each of them is looked up.
	//
	//reference:limit object | ValidatingAdmissionPolicy: combinations of groups, versions and resources in the type check | a warning in its status
	maxResources = 1000
)

func tooMuch(policy *admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	spec := field.NewPath("spec")
	if n := len(policy.Spec.Variables); n > maxVariables {
		return unchecked(spec.Child("variables"), fmt.Sprintf("%d variables, at most %d allowed", n, maxVariables))
	}
	matched := 0
	if policy.Spec.MatchConstraints != nil {
		for i := range policy.Spec.MatchConstraints.ResourceRules {
			rule := &policy.Spec.MatchConstraints.ResourceRules[i]
			matched += len(rule.APIGroups) * len(rule.APIVersions) * len(rule.Resources)
		}
	}
	if matched > maxResources {
		return unchecked(spec.Child("matchConstraints", "resourceRules"), fmt.Sprintf("%d combinations of groups, versions and resources, at most %d allowed", matched, maxResources))
	}
	return nil
}

func checkAll(ctx context.Context, checker validating.TypeChecker, policy *admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	var warnings []admissionregistrationv1.ExpressionWarning
	types := checker.CreateContext(policy)
	check := func(at *field.Path, expression string) {
		if results := checker.CheckExpression(types, expression); len(results) > 0 {
			warnings = append(warnings, admissionregistrationv1.ExpressionWarning{FieldRef: at.String(), Warning: results.String()})
		}
	}
	validations := field.NewPath("spec", "validations")
	for i, v := range policy.Spec.Validations {
		at := validations.Index(i)
		if ctx.Err() != nil {
			return append(warnings, unchecked(at, fmt.Sprintf("the preceding expressions took longer than %s. The following ones are not checked either", budget))...)
		}
		check(at.Child("expression"), v.Expression)
		if v.MessageExpression != "" {
			check(at.Child("messageExpression"), v.MessageExpression)
		}
	}
	return warnings
}

func unchecked(at *field.Path, why string) []admissionregistrationv1.ExpressionWarning {
	return []admissionregistrationv1.ExpressionWarning{{FieldRef: at.String(), Warning: "not checked: " + why}}
}
