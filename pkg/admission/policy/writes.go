package policy

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
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

type limits struct {
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

// NewLimits returns the plugin that limits the expressions of policies, before validation compiles them, and the number
// of bindings. Policies that exceed the limits already may not grow.
func NewLimits(mutating *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicy], validating *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicy],
	mutatingBindings *replicas.Dual[*admissionregistrationv1.MutatingAdmissionPolicyBinding], validatingBindings *replicas.Dual[*admissionregistrationv1.ValidatingAdmissionPolicyBinding],
) percluster.Mutator {
	l := &limits{
		mutating: mutating, validating: validating, amounts: lru.New(amountsKept),
		bindings: map[schema.GroupResource]func(logicalcluster.Name) int{
			admissionregistrationv1.Resource("mutatingadmissionpolicybindings"):   func(in logicalcluster.Name) int { return len(mutatingBindings.In(in)) },
			admissionregistrationv1.Resource("validatingadmissionpolicybindings"): func(in logicalcluster.Name) int { return len(validatingBindings.In(in)) },
		},
	}
	return percluster.Mutator{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: l.admit}
}

func (l *limits) admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
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
	cluster, _ := request.ClusterNameFrom(ctx)
	if all := sumIn(l, l.mutating, cluster) + sumIn(l, l.validating, cluster) - old.memory() + now.memory(); all > maxExpressionBytesInCluster {
		return admission.NewForbidden(a, fmt.Errorf("including this one, the policies of the logical cluster %s have %d bytes of expressions, at most %d allowed, and each instruction of a compiled regular expression beyond the length of its text counts as a byte: shorten expressions, or delete policies", cluster, all, maxExpressionBytesInCluster))
	}
	return nil
}

func admitBinding(ctx context.Context, a admission.Attributes, bindings func(logicalcluster.Name) int) error {
	if a.GetOperation() != admission.Create || percluster.IsServer(a.GetUserInfo()) {
		return nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
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
func sumIn[P client.Object](l *limits, policies *replicas.Dual[P], cluster logicalcluster.Name) (bytes int) {
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

// NewAccess returns the plugin that requires authors of policies and bindings to be allowed to read the parameters. The
// server reads them as system:masters, and responses of a policy may disclose them.
//
// The rules are those of kube-apiserver. paramKind requires get on all objects of the kind. paramRef requires
// get on the named object, or list for a selector. If the policy or its kind of parameters does not exist
// yet, the permission is required for all kinds. Updates that do not change these fields require nothing.
func NewAccess(c percluster.Config) percluster.Validator {
	return percluster.Validator{Handler: admission.NewHandler(admission.Create, admission.Update), Validates: access(c).validate}
}

// access uses Clients and Authorizer.
type access percluster.Config

// paramsOf returns the parameter kind of a policy, or the parameter reference and policy name of a binding.
func paramsOf(obj runtime.Object) (kind *admissionregistrationv1.ParamKind, ref *admissionregistrationv1.ParamRef, policy string) {
	switch obj := obj.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return obj.Spec.ParamKind, nil, ""
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return obj.Spec.ParamKind, nil, ""
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		return nil, obj.Spec.ParamRef, obj.Spec.PolicyName
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		return nil, obj.Spec.ParamRef, obj.Spec.PolicyName
	default:
		return nil, nil, ""
	}
}

func (p access) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	kind, ref, policy := paramsOf(a.GetObject())
	if kind == nil && ref == nil || identity.MemberOf(ctx, a.GetUserInfo(), user.SystemPrivilegedGroup) {
		return nil
	}
	if oldKind, oldRef, oldPolicy := paramsOf(a.GetOldObject()); a.GetOperation() == admission.Update &&
		equality.Semantic.DeepEqual(kind, oldKind) && equality.Semantic.DeepEqual(ref, oldRef) && policy == oldPolicy {
		return nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	wanted := authorizer.AttributesRecord{User: a.GetUserInfo(), Verb: "get", Namespace: "*", Name: "*", ResourceRequest: true}
	if ref != nil {
		var err error
		if kind, err = p.kindOf(ctx, cluster, a.GetResource().Resource, policy); err != nil {
			return err
		}
		if wanted.Name = ref.Name; ref.Name == "" {
			wanted.Verb = "list"
		}
		if ref.Namespace != "" {
			wanted.Namespace = ref.Namespace
		}
	}
	wanted.APIGroup, wanted.APIVersion, wanted.Resource = p.resourceOf(ctx, cluster, kind)
	decision, _, err := p.Authorizer.Authorize(ctx, wanted)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorizing access to the parameters: %w", err))
	}
	if decision != authorizer.DecisionAllow {
		return admission.NewForbidden(a, fmt.Errorf("you must be allowed to %s %s, because policies disclose their parameters", wanted.Verb, describe(wanted)))
	}
	return nil
}

// kindOf returns the parameter kind of the policy that a binding names, or nil.
func (p access) kindOf(ctx context.Context, cluster logicalcluster.Name, bindings, policy string) (*admissionregistrationv1.ParamKind, error) {
	in := p.Clients.Cluster(cluster.Path())
	var found runtime.Object
	var err error
	if bindings == "mutatingadmissionpolicybindings" {
		found, err = kinds.MutatingAdmissionPolicies.In(in).Get(ctx, policy, metav1.GetOptions{})
	} else {
		found, err = kinds.ValidatingAdmissionPolicies.In(in).Get(ctx, policy, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none yet
	}
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("reading the policy %s: %w", policy, err))
	}
	kind, _, _ := paramsOf(found)
	return kind, nil
}

// resourceOf returns the resource of a parameter kind, with * for unknown parts.
func (p access) resourceOf(ctx context.Context, cluster logicalcluster.Name, kind *admissionregistrationv1.ParamKind) (group, version, resource string) {
	if kind == nil {
		return "*", "*", "*"
	}
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	mapping, err := resourceOf(ctx, p.Clients.Cluster(cluster.Path()), gvk)
	if err != nil {
		return gvk.Group, gvk.Version, "*"
	}
	return gvk.Group, gvk.Version, mapping.Resource.Resource
}

func describe(a authorizer.AttributesRecord) string {
	resource := schema.GroupResource{Group: a.APIGroup, Resource: a.Resource}.String()
	if a.Resource == "*" {
		resource = "all resources (the kind of the parameters is unknown)"
	}
	objects, in := "all of "+resource, " in all namespaces"
	switch {
	case a.Name != "*" && a.Name != "":
		objects = fmt.Sprintf("%q of %s", a.Name, resource)
	case a.Resource == "*":
		objects = resource
	}
	if a.Namespace != "*" {
		in = fmt.Sprintf(" in namespace %q", a.Namespace)
	}
	return objects + in
}
