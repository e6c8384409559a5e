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
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/shardplane/shardplane/pkg/replicas"
)

// Validating applies ValidatingAdmissionPolicies.
type Validating struct {
	*plugin[*validating.Policy, *validating.PolicyBinding, validating.Validator]
}

var _ admission.ValidationInterface = &Validating{}

// NewValidating returns the plugin.
func NewValidating(c Config, policies *replicas.Dual[*validating.Policy], bindings *replicas.Dual[*validating.PolicyBinding]) *Validating {
	handler := admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update)
	return &Validating{newPlugin(c, handler, kind[*validating.Policy, *validating.PolicyBinding, validating.Validator]{
		name:     "validating",
		policies: policies,
		bindings: bindings,
		policy:   validating.NewValidatingAdmissionPolicyAccessor,
		binding:  validating.NewValidatingAdmissionPolicyBindingAccessor,
		spec:     func(p *validating.Policy) any { return &p.Spec },
		compile:  compileValidating,
		dispatcher: func(_ logicalcluster.Name, matcher *matching.Matcher) (generic.Dispatcher[validating.PolicyHook], error) {
			return validating.NewDispatcher(c.Authorizer, generic.NewPolicyMatcher(matcher)), nil
		},
	})}
}

// Validate implements admission.ValidationInterface.
func (v *Validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return v.dispatch(ctx, a, o)
}

func newCompiler(variables []admissionregistrationv1.Variable, options cel.OptionalVariableDeclarations) (*cel.CompositedCompiler, error) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	named := make([]cel.NamedExpressionAccessor, 0, len(variables))
	for _, v := range variables {
		named = append(named, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(named, options, environment.StoredExpressions)
	return compiler, nil
}

// compileMatcher returns a matcher for match conditions, or nil if there are none.
func compileMatcher(compiler *cel.CompositedCompiler, conditions []admissionregistrationv1.MatchCondition, options cel.OptionalVariableDeclarations, fail *admissionregistrationv1.FailurePolicyType, policy string) matchconditions.Matcher {
	if len(conditions) == 0 {
		return nil
	}
	accessors := make([]cel.ExpressionAccessor, 0, len(conditions))
	for i := range conditions {
		accessors = append(accessors, (*matchconditions.MatchCondition)(&conditions[i]))
	}
	return matchconditions.NewMatcher(compiler.CompileCondition(accessors, options, environment.StoredExpressions), fail, "policy", "validate", policy)
}

func compileValidating(policy *validating.Policy) validating.Validator {
	spec := &policy.Spec
	options := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	compiler, err := newCompiler(spec.Variables, options)
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, spec.FailurePolicy, err)
	}
	expressions := make([]cel.ExpressionAccessor, 0, len(spec.Validations))
	// A message belongs to the expression at the same index, so it is nil if the expression has none.
	messages := make([]cel.ExpressionAccessor, len(spec.Validations))
	for i, v := range spec.Validations {
		expressions = append(expressions, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		if v.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	annotations := make([]cel.ExpressionAccessor, 0, len(spec.AuditAnnotations))
	for _, a := range spec.AuditAnnotations {
		annotations = append(annotations, &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression})
	}
	withoutAuthorizer := options
	withoutAuthorizer.HasAuthorizer = false
	return validating.NewValidator(
		compiler.CompileCondition(expressions, options, environment.StoredExpressions),
		compileMatcher(compiler, spec.MatchConditions, options, spec.FailurePolicy, policy.Name),
		compiler.CompileCondition(annotations, options, environment.StoredExpressions),
		compiler.CompileCondition(messages, withoutAuthorizer, environment.StoredExpressions),
		spec.FailurePolicy,
		nil,
	)
}

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
			// The dispatcher is never started, because it would only poll schemas.
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
