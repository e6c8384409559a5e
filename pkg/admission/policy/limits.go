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

// What policies may have in expressions: these are compiled when a policy is written, and with the
// first write that they judge after a change, and take a hundred times their size in memory then.
const (
	// maxExpressions is of how many expressions a policy may have.
	maxExpressions = 1000
	// maxExpressionBytes are theirs, in one policy.
	maxExpressionBytes = 64 << 10
	// maxExpressionBytesInCluster are those of all policies of a logical cluster. An instruction of a regular expression
	// takes as much memory as a byte of an expression, and counts as one.
	maxExpressionBytesInCluster = 4 << 20
	// amountsKept is how many policies are not parsed again to count their instructions.
	amountsKept = 16 << 10
	// maxBindings is how many bindings of a kind a logical cluster may have: a policy is evaluated for each.
	maxBindings = 1000
)

// Limits is the admission plugin that refuses policies with too many or too large expressions, before
// anybody compiles them, and too many bindings. Policies that are larger already keep what they have, and may
// shrink.
type Limits struct {
	*admission.Handler
	mutating   *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy]
	validating *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy]
	// bindings returns how many bindings there are, by their resource.
	bindings map[schema.GroupResource]func(logicalcluster.Name) int
	// amounts are those of stored policies, by stored.
	amounts *lru.Cache
}

// stored identifies a stored policy.
type stored struct {
	uid             types.UID
	resourceVersion string
}

var _ admission.MutationInterface = &Limits{}

// NewLimits returns the plugin, for policies and bindings of all logical clusters.
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

// Admit implements admission.MutationInterface: policies are validated, and so compiled, after it and before
// validating plugins.
func (l *Limits) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if bindings := l.bindings[a.GetResource().GroupResource()]; bindings != nil {
		return admitBinding(ctx, a, bindings)
	}
	now, old := expressionsOf(a.GetObject()), expressionsOf(a.GetOldObject())
	grows := now.bytes > old.bytes
	switch {
	case now.number > maxExpressions && now.number > old.number:
		return admission.NewForbidden(a, fmt.Errorf("it has %d expressions and may have %d: leave out those that are not needed, or split the policy", now.number, maxExpressions))
	case now.bytes > maxExpressionBytes && grows:
		return admission.NewForbidden(a, fmt.Errorf("it has %d bytes of expressions and may have %d: shorten them, or split the policy", now.bytes, maxExpressionBytes))
	case now.memory() <= old.memory() || percluster.IsServer(a.GetUserInfo()):
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if all := sumIn(l, l.mutating, cluster) + sumIn(l, l.validating, cluster) - old.memory() + now.memory(); all > maxExpressionBytesInCluster {
		return admission.NewForbidden(a, fmt.Errorf("with it, the policies of the logical cluster %s have %d bytes of expressions, and may have %d, where each instruction by which the program of a regular expression is longer than its text counts as one: shorten them, or delete policies that are not needed", cluster, all, maxExpressionBytesInCluster))
	}
	return nil
}

// admitBinding refuses a new binding where there are enough.
func admitBinding(ctx context.Context, a admission.Attributes, bindings func(logicalcluster.Name) int) error {
	if a.GetOperation() != admission.Create || percluster.IsServer(a.GetUserInfo()) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if n := bindings(cluster); n >= maxBindings {
		return admission.NewForbidden(a, fmt.Errorf("the logical cluster %s has %d of them and may have %d: delete what is not needed, or select parameters instead of naming each in a binding of its own", cluster, n, maxBindings))
	}
	return nil
}

// amount is how many expressions a policy has, and of how many bytes, and how many instructions more than bytes their regular
// expressions have.
type amount struct {
	number, bytes int
	instructions  patterns.Total
}

// memory returns the memory that the expressions take, as the bytes of expressions that take as much.
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

// expressionsOf returns what a policy has in expressions; nothing for what is none.
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
