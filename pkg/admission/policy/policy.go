// Package policy applies the policies of the logical cluster of a write.
//
//	policies, bindings ─► set of a logical cluster, built on first use
//	                        ├─ evaluators, shared by logical clusters with equal policies
//	                        ├─ parameters, watched only if a policy has them; read on demand if they
//	                        │  are on another shard or too large to be cached (remoteparams)
//	                        └─ upstream's dispatcher
package policy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
)

// retryAfter is the lifetime of an incomplete set, e.g. because the kind of a parameter is not served.
const retryAfter = time.Second

// Config configures the plugins.
type Config struct {
	percluster.Config
	// Params may be shared by plugins.
	Params *Params
}

// ownResources bypass policies, because otherwise a policy that denies everything could not be removed.
var ownResources = []schema.GroupResource{
	admissionregistrationv1.Resource("validatingadmissionpolicies"),
	admissionregistrationv1.Resource("validatingadmissionpolicybindings"),
	admissionregistrationv1.Resource("mutatingadmissionpolicies"),
	admissionregistrationv1.Resource("mutatingadmissionpolicybindings"),
}

// set contains the policies and bindings of one logical cluster.
type set[P, B client.Object, E any] struct {
	hooks []generic.PolicyHook[P, B, E]
	// evaluators keeps the evaluators of hooks alive for weakCache.
	evaluators []*E
	params     bool
}

// forOneWrite returns hooks that count parameters, and whether the write needed parameters that have not been read yet.
func (s *set[P, B, E]) forOneWrite() (hooks []generic.PolicyHook[P, B, E], unknown func() bool) {
	if !s.params {
		return s.hooks, func() bool { return false }
	}
	remaining := maxParameters
	hooks = slices.Clone(s.hooks)
	all := make([]needs, len(hooks))
	for i := range hooks {
		if param, ok := hooks[i].ParamInformer.(*param); ok {
			hooks[i].ParamInformer = counted{param, &remaining, &all[i]}
		}
	}
	return hooks, func() bool {
		for i := range all {
			if all[i].unsynced.Load() || all[i].unread.Load() {
				return true
			}
		}
		return false
	}
}

// kind implements one kind of policies.
type kind[P, B client.Object, E any] struct {
	name     string
	policies *replicas.Dual[P]
	bindings *replicas.Dual[B]
	policy   func(P) generic.PolicyAccessor
	binding  func(B) generic.BindingAccessor
	spec     func(P) any
	compile  func(P) E
	// dispatcher returns upstream's dispatcher for a logical cluster.
	dispatcher func(in logicalcluster.Name, matcher *matching.Matcher) (generic.Dispatcher[generic.PolicyHook[P, B, E]], error)
}

type plugin[P, B client.Object, E any] struct {
	*percluster.Cache[set[P, B, E]]
	config   Config
	kind     kind[P, B, E]
	excluded sets.Set[schema.GroupResource]
	compiled *weakCache[E]
}

func newPlugin[P, B client.Object, E any](c Config, k kind[P, B, E]) *plugin[P, B, E] {
	p := &plugin[P, B, E]{
		config:   c,
		kind:     k,
		excluded: sets.New(ownResources...).Insert(c.Excluded...),
		compiled: &weakCache[E]{values: map[digest]weak.Pointer[E]{}},
	}
	p.Cache = percluster.NewCache(p.build, percluster.NewPrerequisites(c.Namespaces, c.Local, k.policies, k.bindings))
	empty := func(cluster logicalcluster.Name) bool {
		return len(k.policies.In(cluster))+len(k.bindings.In(cluster)) == 0
	}
	percluster.Follow(p.Cache, k.policies, empty, p.prune)
	percluster.Follow(p.Cache, k.bindings, empty, p.prune)
	return p
}

// prune ends the watches of parameters that no policy needs, even if there are no more writes.
func (p *plugin[P, B, E]) prune(cluster logicalcluster.Name) {
	p.config.Params.keep(cluster, p.kind.name, p.paramKinds(cluster))
}

// paramKinds returns the parameter kinds of policies with bindings.
func (p *plugin[P, B, E]) paramKinds(cluster logicalcluster.Name) sets.Set[schema.GroupVersionKind] {
	kinds := sets.New[schema.GroupVersionKind]()
	if !p.config.Params.any(cluster) {
		return kinds
	}
	for _, binding := range p.kind.bindings.In(cluster) {
		policy, err := p.kind.policies.Get(cluster, "", p.kind.binding(binding).GetPolicyName().Name)
		if err != nil {
			continue
		}
		if gvk, ok := paramKindOf(p.kind.policy(policy)); ok {
			kinds.Insert(gvk)
		}
	}
	return kinds
}

// build creates the set of a logical cluster, sorted by policy name.
func (p *plugin[P, B, E]) build(cluster logicalcluster.Name) (*set[P, B, E], time.Duration, error) {
	bindings := map[string][]B{}
	for _, binding := range p.kind.bindings.In(cluster) {
		name := p.kind.binding(binding).GetPolicyName().Name
		bindings[name] = append(bindings[name], binding)
	}
	s := &set[P, B, E]{}
	var retry time.Duration
	for _, policy := range p.kind.policies.In(cluster) {
		if len(bindings[policy.GetName()]) == 0 {
			continue
		}
		evaluator, err := p.compiled.get(policy.GetName(), p.kind.spec(policy), func() E { return p.kind.compile(policy) })
		if err != nil {
			return nil, retryAfter, fmt.Errorf("preparing policy %s: %w", policy.GetName(), err)
		}
		hook := generic.PolicyHook[P, B, E]{Policy: policy, Bindings: bindings[policy.GetName()], Evaluator: *evaluator}
		if gvk, ok := paramKindOf(p.kind.policy(policy)); ok {
			shard := ""
			if !p.config.Local(cluster) {
				shard = policy.GetAnnotations()[request.ShardAnnotation]
			}
			param, err := p.config.Params.get(cluster, p.kind.name, gvk, shard)
			switch {
			case errors.Is(err, errUnknown):
				// Only writes that the policy matches depend on the parameters.
				p.config.Params.logger.V(2).Info("Failed to find the parameters of a policy, retrying", "logicalCluster", cluster, "policy", policy.GetName(), "err", err)
				hook.ParamInformer, hook.ParamScope = unknownParam(), meta.RESTScopeRoot
				s.params, retry = true, retryAfter
			case err != nil:
				// The failure policy of the policy applies.
				hook.ConfigurationError, retry = err, retryAfter
			default:
				hook.ParamInformer, hook.ParamScope = param, param.reads.Scope
				hook.DynamicClient, hook.RESTMapper = param.dynamic, param
				s.params = true
			}
		}
		s.hooks = append(s.hooks, hook)
		s.evaluators = append(s.evaluators, evaluator)
	}
	// If a policy was deleted in the meantime, get has started its watch again.
	p.prune(cluster)
	slices.SortFunc(s.hooks, func(a, b generic.PolicyHook[P, B, E]) int {
		return cmp.Compare(a.Policy.GetName(), b.Policy.GetName())
	})
	return s, retry, nil
}

func paramKindOf(policy generic.PolicyAccessor) (schema.GroupVersionKind, bool) {
	kind := policy.GetParamKind()
	if kind == nil {
		return schema.GroupVersionKind{}, false
	}
	return schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind), true
}

func (p *plugin[P, B, E]) dispatch(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if p.excluded.Has(a.GetResource().GroupResource()) {
		return nil
	}
	s, source, in, err := p.For(ctx, a)
	if err != nil || s == nil || len(s.hooks) == 0 {
		return err
	}
	if source != in {
		defer percluster.AnnotateCluster(a, in)()
	}
	return p.dispatchTo(ctx, s, in, a, o)
}

// dispatchTo applies the policies, also those of a provider, with namespaces of the logical cluster that is written to.
func (p *plugin[P, B, E]) dispatchTo(ctx context.Context, s *set[P, B, E], in logicalcluster.Name, a admission.Attributes, o admission.ObjectInterfaces) error {
	matcher := matching.NewMatcher(percluster.NewNamespaceLister(p.config.Namespaces, in), percluster.NewClientset(p.config.Clients, in))
	hooks, unknown := s.forOneWrite()
	dispatcher, err := p.kind.dispatcher(in, matcher)
	if err == nil {
		err = dispatcher.Dispatch(ctx, a, percluster.Pausing(ctx, o), hooks)
	}
	if err != nil && unknown() {
		// The error may be only temporary, but a denial would be final.
		return request.Unavailable(fmt.Sprintf("%v, try again: %v", errUnknown, err))
	}
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// weakCache caches values by their input as long as they are in use. Therefore, policies that many
// logical clusters have in common are compiled once.
type weakCache[V any] struct {
	mu     sync.Mutex
	values map[digest]weak.Pointer[V]
}

type digest [sha256.Size]byte

// get returns the value for a specification, and the name, which is contained in metrics and messages.
func (s *weakCache[V]) get(name string, spec any, build func() V) (*V, error) {
	text, err := json.Marshal([]any{name, spec})
	if err != nil {
		return nil, fmt.Errorf("encoding the specification: %w", err)
	}
	key := digest(sha256.Sum256(text))
	s.mu.Lock()
	value := s.values[key].Value()
	s.mu.Unlock()
	if value != nil {
		return value, nil
	}
	// Build without the lock, because compiling takes milliseconds. The first of concurrent results is used.
	made := new(V)
	*made = build()
	s.mu.Lock()
	defer s.mu.Unlock()
	if value := s.values[key].Value(); value != nil {
		return value, nil
	}
	s.values[key] = weak.Make(made)
	runtime.AddCleanup(made, s.remove, key)
	return made, nil
}

// remove removes the entry of a collected value unless it has been replaced.
func (s *weakCache[V]) remove(key digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values[key].Value() == nil {
		delete(s.values, key)
	}
}

// NewValidating returns the plugin that applies ValidatingAdmissionPolicies.
func NewValidating(c Config, policies *replicas.Dual[*validating.Policy], bindings *replicas.Dual[*validating.PolicyBinding]) percluster.Validator {
	p := newPlugin(c, kind[*validating.Policy, *validating.PolicyBinding, validating.Validator]{
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
	})
	return percluster.Validator{
		Handler: admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), Validates: p.dispatch,
	}
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

// NewMutating returns the plugin that applies MutatingAdmissionPolicies.
func NewMutating(c Config, policies *replicas.Dual[*mutating.Policy], bindings *replicas.Dual[*mutating.PolicyBinding]) percluster.Mutator {
	schemas := &converters{clients: c.Clients, cache: lru.New(maxConverters), clusters: lru.New(maxClusters)}
	p := newPlugin(c, kind[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]{
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
	})
	// Deletions have no object to mutate.
	return percluster.Mutator{Handler: admission.NewHandler(admission.Connect, admission.Create, admission.Update), Admits: p.dispatch}
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
