package policy

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/shardplane/shardplane/pkg/replicas"
)

// Mutating applies MutatingAdmissionPolicies.
type Mutating struct {
	*plugin[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]
}

var _ admission.MutationInterface = &Mutating{}

// NewMutating returns the plugin.
func NewMutating(c Config, policies *replicas.Dual[*mutating.Policy], bindings *replicas.Dual[*mutating.PolicyBinding]) *Mutating {
	schemas := newConverters(c.Clients)
	// Deletions have no object to mutate.
	handler := admission.NewHandler(admission.Connect, admission.Create, admission.Update)
	return &Mutating{newPlugin(c, handler, kind[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]{
		name:     "mutating",
		policies: policies,
		bindings: bindings,
		policy:   mutating.NewMutatingAdmissionPolicyAccessor,
		binding:  mutating.NewMutatingAdmissionPolicyBindingAccessor,
		spec:     func(p *mutating.Policy) any { return &p.Spec },
		compile:  compileMutating,
		dispatcher: func(in logicalcluster.Name, matcher *matching.Matcher) (generic.Dispatcher[mutating.PolicyHook], error) {
			known, err := schemas.of(in)
			if err != nil {
				return nil, err
			}
			// The dispatcher is never started, because it would only poll schemas, which are read on demand
			// here.
			return mutating.NewDispatcher(c.Authorizer, matcher, known), nil
		},
	})}
}

// Admit implements admission.MutationInterface.
func (m *Mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return m.dispatch(ctx, a, o)
}

func compileMutating(policy *mutating.Policy) mutating.PolicyEvaluator {
	spec := &policy.Spec
	options := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	compiler, err := newCompiler(spec.Variables, options)
	if err != nil {
		return mutating.PolicyEvaluator{Error: err}
	}
	patching := options
	patching.HasPatchTypes = true
	evaluator := func(expression cel.ExpressionAccessor) cel.MutatingEvaluator {
		return limitedPatches{compiler.CompileMutatingEvaluator(expression, patching, environment.StoredExpressions)}
	}
	patchers := make([]patch.Patcher, 0, len(spec.Mutations))
	for _, m := range spec.Mutations {
		switch {
		case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			expression := &patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}
			patchers = append(patchers, patch.NewJSONPatcher(evaluator(expression)))
		case m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			expression := &patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}
			patchers = append(patchers, patch.NewApplyConfigurationPatcher(evaluator(expression)))
		}
	}
	return mutating.PolicyEvaluator{
		Matcher:            compileMatcher(compiler, spec.MatchConditions, options, spec.FailurePolicy, policy.Name),
		Mutators:           patchers,
		CompositedCompiler: compiler,
	}
}
