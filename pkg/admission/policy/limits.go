package policy

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// Limits of expressions, which are compiled when a policy is written and on the first write after a change. Compiled
// expressions take a hundred times as much memory.
const (
	// maxExpressions and maxExpressionBytes limit one policy.
	//
	//reference:limit object | admission policy: expressions | 403
	maxExpressions = 1000
	//reference:limit object | admission policy: size of the expressions | 403
	maxExpressionBytes = 64 << 10
	// maxExpressionBytesInCluster limits all policies of a logical cluster. An instruction of a regular expression
	// takes as much memory as a byte of an expression, and counts as one.
	//
	//reference:limit cluster | admission policies: size of all expressions | 403
	maxExpressionBytesInCluster = 4 << 20
	// amountsKept is the number of policies whose memory is cached.
	amountsKept = 16 << 10
	// maxBindings limits the bindings of a kind in a logical cluster. A policy is evaluated once for each.
	//
	//reference:limit cluster | admission policies: mutating, and validating, bindings | 403
	maxBindings = 1000
)

// Limits is the admission plugin that limits the expressions of policies before they are compiled, and the
// number of bindings. Policies that exceed the limits already may not grow.
type Limits struct {
	*admission.Handler
	mutating   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy]
	validating *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy]
	// bindings returns the number of bindings of a logical cluster, by resource.
	bindings map[schema.GroupResource]func(logicalcluster.Name) int
	// amounts caches the memory of stored policies.
	amounts *lru.Cache
}

type stored struct {
	uid             types.UID
	resourceVersion string
}

var _ admission.MutationInterface = &Limits{}

// NewLimits returns the plugin for policies and bindings of all logical clusters.
func NewLimits(mutating *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy], validating *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy],
	mutatingBindings *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding], validatingBindings *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding],
) *Limits {
	return &Limits{
		Handler: admission.NewHandler(admission.Create, admission.Update), mutating: mutating, validating: validating, amounts: lru.New(amountsKept),
		bindings: map[schema.GroupResource]func(logicalcluster.Name) int{
			admissionregistrationv1.Resource("mutatingadmissionpolicybindings"):   func(in logicalcluster.Name) int { return len(mutatingBindings.In(in)) },
			admissionregistrationv1.Resource("validatingadmissionpolicybindings"): func(in logicalcluster.Name) int { return len(validatingBindings.In(in)) },
		},
	}
}

// Admit implements admission.MutationInterface. It must run before validation, which compiles policies.
func (l *Limits) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if bindings := l.bindings[a.GetResource().GroupResource()]; bindings != nil {
		return admitBinding(ctx, a, bindings)
	}
	now, old := expressionsOf(a.GetObject()), expressionsOf(a.GetOldObject())
	grows := now.bytes > old.bytes
	switch {
	case now.number > maxExpressions && now.number > old.number:
		return admission.NewForbidden(a, fmt.Errorf("it has %d expressions, at most %d allowed: remove expressions, or split the policy", now.number, maxExpressions))
	case now.bytes > maxExpressionBytes && grows:
		return admission.NewForbidden(a, fmt.Errorf("it has %d bytes of expressions, at most %d allowed: shorten them, or split the policy", now.bytes, maxExpressionBytes))
	case now.memory() <= old.memory() || percluster.IsServer(a.GetUserInfo()):
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if all := sumIn(l, l.mutating, cluster) + sumIn(l, l.validating, cluster) - old.memory() + now.memory(); all > maxExpressionBytesInCluster {
		return admission.NewForbidden(a, fmt.Errorf("including this one, the policies of the logical cluster %s have %d bytes of expressions, at most %d allowed, and each instruction of a compiled regular expression beyond the length of its text counts as a byte: shorten expressions, or delete policies", cluster, all, maxExpressionBytesInCluster))
	}
	return nil
}

func admitBinding(ctx context.Context, a admission.Attributes, bindings func(logicalcluster.Name) int) error {
	if a.GetOperation() != admission.Create || percluster.IsServer(a.GetUserInfo()) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if n := bindings(cluster); n >= maxBindings {
		return admission.NewForbidden(a, fmt.Errorf("the logical cluster %s has %d bindings of this kind, at most %d allowed: delete bindings, or select parameters instead of naming each in its own binding", cluster, n, maxBindings))
	}
	return nil
}

// amount is the number and bytes of the expressions of a policy, and the number of instructions by which their regular
// expressions exceed their bytes.
type amount struct {
	number, bytes int
	instructions  patterns.Total
}

// memory returns the memory of the expressions in bytes of expressions.
func (a *amount) memory() int { return a.bytes + int(a.instructions) }

func (a *amount) add(expression string) {
	if expression != "" {
		a.number++
		a.bytes += len(expression)
		a.instructions += patterns.Excess(expression)
	}
}

func (a *amount) addCommon(conditions []admissionregistrationv1.MatchCondition, variables []admissionregistrationv1.Variable) {
	for i := range conditions {
		a.add(conditions[i].Expression)
	}
	for i := range variables {
		a.add(variables[i].Expression)
	}
}

// expressionsOf returns zero for objects that are no policies.
func expressionsOf(obj runtime.Object) (a amount) {
	switch policy := obj.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		a.addCommon(policy.Spec.MatchConditions, policy.Spec.Variables)
		for i := range policy.Spec.Validations {
			a.add(policy.Spec.Validations[i].Expression)
			a.add(policy.Spec.Validations[i].MessageExpression)
		}
		for i := range policy.Spec.AuditAnnotations {
			a.add(policy.Spec.AuditAnnotations[i].ValueExpression)
		}
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		a.addCommon(policy.Spec.MatchConditions, policy.Spec.Variables)
		for i := range policy.Spec.Mutations {
			if m := policy.Spec.Mutations[i].ApplyConfiguration; m != nil {
				a.add(m.Expression)
			}
			if m := policy.Spec.Mutations[i].JSONPatch; m != nil {
				a.add(m.Expression)
			}
		}
	}
	return a
}

// sumIn returns the memory of the expressions of all policies of a kind in a logical cluster.
func sumIn[P client.Object](l *Limits, policies *replicas.Dual[P], cluster logicalcluster.Name) (bytes int) {
	for _, policy := range policies.In(cluster) {
		key := stored{policy.GetUID(), policy.GetResourceVersion()}
		known, ok := l.amounts.Get(key)
		if !ok {
			of := expressionsOf(policy)
			known = of.memory()
			l.amounts.Add(key, known)
		}
		bytes += known.(int) //nolint:forcetypeassert // only this function adds
	}
	return bytes
}
