package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// Rules returns the rules in the logical cluster of a context.
type Rules interface {
	// RulesOf returns the rules of a user in the namespace and in all namespaces. An error means that they are incomplete.
	RulesOf(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error)
	// RulesIn returns the rules of the role that a binding in the namespace refers to, or a NotFound error.
	RulesIn(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error)
}

// Config configures the resources.
type Config struct {
	// Authorizer is used for the verbs escalate and bind.
	Authorizer authorizer.UnconditionalAuthorizer
	Rules      Rules
	// Wrote is called for every object that was written or deleted, before the response is sent. It is optional.
	Wrote func(cluster logicalcluster.Name, resource, resourceVersion string)
}

func (c Config) notifyWrites(name string) func(store *genericregistry.Store) {
	if c.Wrote == nil {
		return nil
	}
	// The result of a dry run has no resourceVersion, or an old one, so that nothing waits for it.
	wrote := func(obj runtime.Object) {
		if typed, ok := obj.(metav1.Object); ok {
			c.Wrote(logicalcluster.From(typed), name, typed.GetResourceVersion())
		}
	}
	return func(store *genericregistry.Store) {
		store.AfterCreate = func(obj runtime.Object, _ *metav1.CreateOptions) { wrote(obj) }
		store.AfterUpdate = func(obj runtime.Object, _ *metav1.UpdateOptions) { wrote(obj) }
		store.AfterDelete = func(obj runtime.Object, _ *metav1.DeleteOptions) { wrote(obj) }
	}
}

// checkRole and the following functions prevent writers from granting permissions that they do not have.
func (c Config) checkRole(ctx context.Context, role, old *rbacv1.Role) error {
	if old != nil && (equality.Semantic.DeepEqual(old.Rules, role.Rules) || onlyForDeletion(role, old)) {
		return nil
	}
	if exempt(ctx) || c.allowed(ctx, "escalate", "roles", role.Name, namespaceOf(ctx)) {
		return nil
	}
	return forbidden("roles", role.Name, c.covers(ctx, role.Rules))
}

func (c Config) checkClusterRole(ctx context.Context, role, old *rbacv1.ClusterRole) error {
	if old != nil && (onlyForDeletion(role, old) ||
		equality.Semantic.DeepEqual(old.Rules, role.Rules) && equality.Semantic.DeepEqual(old.AggregationRule, role.AggregationRule)) {
		return nil
	}
	if exempt(ctx) || c.allowed(ctx, "escalate", "clusterroles", role.Name, "") {
		return nil
	}
	// The controller may add any rules to an aggregated role.
	if role.AggregationRule != nil || old != nil && old.AggregationRule != nil {
		if err := c.covers(ctx, everything); err != nil {
			return forbidden("clusterroles", role.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
	}
	return forbidden("clusterroles", role.Name, c.covers(ctx, role.Rules))
}

func bindingCheck[T resource.Object](c Config, name string, namespaced bool, of func(T) *rbacv1.RoleBinding) func(ctx context.Context, binding, old T) error {
	return func(ctx context.Context, binding, old T) error {
		if onlyForDeletion(binding, old) || exempt(ctx) {
			return nil
		}
		namespace := ""
		if namespaced {
			namespace = namespaceOf(ctx)
		}
		ref := of(binding).RoleRef
		roles := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}[ref.Kind]
		// Validation, which comes next, rejects other kinds.
		if roles == "" || c.allowed(ctx, "bind", roles, ref.Name, namespace) {
			return nil
		}
		rules, err := c.Rules.RulesIn(ctx, ref, namespace)
		if err != nil {
			return err
		}
		return forbidden(name, binding.GetName(), c.covers(ctx, rules))
	}
}

// allowed reports whether the writer has a verb on a role.
func (c Config) allowed(ctx context.Context, verb, resource, name, namespace string) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok || c.Authorizer == nil {
		return false
	}
	decision, _, err := c.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User:            u,
		Verb:            verb,
		APIGroup:        rbacv1.GroupName,
		APIVersion:      "*",
		Resource:        resource,
		Name:            name,
		Namespace:       namespace,
		ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

// covers returns an error unless the writer has all of the rules.
func (c Config) covers(ctx context.Context, rules []rbacv1.PolicyRule) error {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok || c.Rules == nil {
		return errors.New("no user on context")
	}
	own, err := c.Rules.RulesOf(ctx, u, namespaceOf(ctx))
	if coversWhole(own, rules) {
		return nil
	}
	if combinations(rules) > maxComparisons/max(averageRules(own), 1) {
		return fmt.Errorf("too many rules to compare with those of user %q: write smaller roles, or use cluster-admin permissions", u.GetName())
	}
	covered, missing := validation.Covers(own, rules)
	if covered {
		return nil
	}
	message := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(describe(missing), "\n"))
	if err != nil {
		message += fmt.Sprintf("; resolution errors: %v", []error{err})
	}
	return errors.New(message)
}

// exempt reports whether the writer has all permissions.
func exempt(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup)
}

func namespaceOf(ctx context.Context) string {
	namespace, _ := genericapirequest.NamespaceFrom(ctx)
	return namespace
}

// onlyForDeletion reports whether an update changes only owner references and finalizers, as the garbage collector's.
func onlyForDeletion[T resource.Object](obj, old T) bool {
	before, ok := old.DeepCopyObject().(T) // false if old is nil
	if !ok || before.GetUID() == "" {
		return false // a new object
	}
	meta, ok := obj.DeepCopyObject().(T)
	if !ok {
		return false
	}
	meta.SetOwnerReferences(before.GetOwnerReferences())
	meta.SetFinalizers(before.GetFinalizers())
	meta.SetSelfLink(before.GetSelfLink())
	meta.SetManagedFields(before.GetManagedFields())
	return equality.Semantic.DeepEqual(meta, before)
}

func forbidden(resource, name string, cause error) error {
	if cause == nil {
		return nil
	}
	return apierrors.NewForbidden(rbacv1.Resource(resource), name, cause)
}

// guarded is a store that checks writes.
type guarded[T resource.Object] struct {
	*genericregistry.Store
	// check may reject a write of obj. old is nil for a new object.
	check func(ctx context.Context, obj, old T) error
}

func guardWith[T resource.Object](check func(ctx context.Context, obj, old T) error) func(*genericregistry.Store) rest.Storage {
	return func(store *genericregistry.Store) rest.Storage { return &guarded[T]{Store: store, check: check} }
}

func (s *guarded[T]) checkObject(ctx context.Context, obj, old runtime.Object) error {
	typed, ok := obj.(T)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("unexpected object of type %T", obj))
	}
	before, _ := old.(T)
	return s.check(ctx, typed, before)
}

var _ rest.StandardStorage = &guarded[*rbacv1.Role]{}

func (s *guarded[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := s.checkObject(ctx, obj, nil); err != nil {
		return nil, err
	}
	return s.Store.Create(ctx, obj, validate, options)
}

// Update implements rest.Updater. It also creates objects, for PUT and for server-side apply.
func (s *guarded[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	checked := rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		return obj, s.checkObject(ctx, obj, old)
	})
	return s.Store.Update(ctx, name, checked, create, update, force, options)
}

// maxComparisons limits the work of comparing rules. The comparison expands rules to every combination of group,
// resource, verb and name, which may not fit into memory for a single object of the permitted size.
const maxComparisons = 1 << 20

// combinations returns the number of rules after expansion. It does not overflow.
func combinations(rules []rbacv1.PolicyRule) (total float64) {
	for _, rule := range rules {
		verbs, names := float64(len(rule.Verbs)), float64(max(len(rule.ResourceNames), 1))
		total += float64(len(rule.APIGroups)) * float64(len(rule.Resources)) * verbs * names
		total += float64(len(rule.NonResourceURLs)) * verbs
	}
	return total
}

// averageRules returns the number of rules with averageValues whose comparison takes as long as that of rules. Half
// of the time depends on the number of values, because each comparison reads all of them.
func averageRules(rules []rbacv1.PolicyRule) float64 {
	const averageValues = 8
	cost := 0
	for i := range rules {
		r := &rules[i]
		cost += averageValues + len(r.Verbs) + len(r.APIGroups) + len(r.Resources) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	return float64(cost) / (2 * averageValues)
}

// coversWhole reports whether each of rules is covered by a rule of own with wildcards only, as administrators have.
func coversWhole(own, rules []rbacv1.PolicyRule) bool {
	all := func(rule rbacv1.PolicyRule, lists ...[]string) bool {
		return slices.Contains(rule.Verbs, "*") && len(rule.ResourceNames) == 0 &&
			!slices.ContainsFunc(lists, func(list []string) bool { return !slices.Contains(list, "*") })
	}
	resources := slices.ContainsFunc(own, func(rule rbacv1.PolicyRule) bool { return all(rule, rule.APIGroups, rule.Resources) })
	paths := slices.ContainsFunc(own, func(rule rbacv1.PolicyRule) bool { return all(rule, rule.NonResourceURLs) })
	return !slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return len(rule.NonResourceURLs) > 0 && !paths || len(rule.Resources) > 0 && !resources
	})
}

// describe formats rules for users. Rules that differ only in their verbs are combined.
func describe(rules []rbacv1.PolicyRule) []string {
	byText, seen := map[string]rbacv1.PolicyRule{}, map[[2]string]bool{}
	for _, rule := range rules {
		verbs := rule.Verbs
		rule.Verbs = nil
		text := describeRule(rule)
		rule.Verbs = byText[text].Verbs
		for _, verb := range verbs {
			if !seen[[2]string{text, verb}] {
				rule.Verbs = append(rule.Verbs, verb)
			}
			seen[[2]string{text, verb}] = true
		}
		byText[text] = rule
	}
	texts := make([]string, 0, len(byText))
	for _, rule := range byText {
		texts = append(texts, describeRule(rule))
	}
	slices.Sort(texts)
	return texts
}

func describeRule(rule rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", rule.APIGroups},
		{"Resources", rule.Resources},
		{"NonResourceURLs", rule.NonResourceURLs},
		{"ResourceNames", rule.ResourceNames},
		{"Verbs", rule.Verbs},
	} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%s", p.name, strings.ReplaceAll(fmt.Sprintf("%q", p.values), `" "`, `", "`)))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
