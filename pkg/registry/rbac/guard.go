package rbac

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// everything are the rules of somebody who may do everything.
var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// Rules answers which rules apply in the logical cluster of a context.
type Rules interface {
	// RulesOf returns the rules that u has in the namespace, those that apply
	// everywhere included. It may return an error along with those that it
	// could find.
	RulesOf(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error)
	// RulesIn returns the rules of the role that a binding in the namespace
	// refers to, or a NotFound error.
	RulesIn(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error)
}

// Config is what the resources need to know.
type Config struct {
	// Authorizer is asked whether a user may escalate or bind without having
	// the rules.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules are what writers are compared with.
	Rules Rules
	// Wrote is told about every object that was written or deleted, by its last
	// resourceVersion, before the client is; optional.
	Wrote func(cluster logicalcluster.Name, resource, resourceVersion string)
}

// tell makes the store tell what it wrote.
func (c Config) tell(name string) func(store *genericregistry.Store) {
	if c.Wrote == nil {
		return nil
	}
	// What a dry run returns has no resourceVersion, or that of an object that
	// was seen long ago; neither is waited for.
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

// guard keeps writers of roles and bindings from giving, to themselves or to
// others, what they do not have.
type guard struct {
	authorizer authorizer.UnconditionalAuthorizer
	rules      Rules
}

func (g *guard) role(ctx context.Context, obj, old runtime.Object) error {
	role, ok := obj.(*rbacv1.Role)
	if !ok {
		return unexpected(obj)
	}
	if before, ok := old.(*rbacv1.Role); ok && (equality.Semantic.DeepEqual(before.Rules, role.Rules) || onlyForDeletion(role, before)) {
		return nil
	}
	if exempt(ctx) || g.allowed(ctx, "escalate", "roles", role.Name, namespaceOf(ctx)) {
		return nil
	}
	return forbidden("roles", role.Name, g.covers(ctx, role.Rules))
}

func (g *guard) clusterRole(ctx context.Context, obj, old runtime.Object) error {
	role, ok := obj.(*rbacv1.ClusterRole)
	if !ok {
		return unexpected(obj)
	}
	before, updates := old.(*rbacv1.ClusterRole)
	if updates && (onlyForDeletion(role, before) ||
		equality.Semantic.DeepEqual(before.Rules, role.Rules) && equality.Semantic.DeepEqual(before.AggregationRule, role.AggregationRule)) {
		return nil
	}
	if exempt(ctx) || g.allowed(ctx, "escalate", "clusterroles", role.Name, "") {
		return nil
	}
	// An aggregated role may grow into anything by itself.
	if role.AggregationRule != nil || updates && before.AggregationRule != nil {
		if err := g.covers(ctx, everything); err != nil {
			return forbidden("clusterroles", role.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
	}
	return forbidden("clusterroles", role.Name, g.covers(ctx, role.Rules))
}

func (g *guard) roleBinding(ctx context.Context, obj, old runtime.Object) error {
	binding, ok := obj.(*rbacv1.RoleBinding)
	if !ok {
		return unexpected(obj)
	}
	if before, ok := old.(*rbacv1.RoleBinding); ok && onlyForDeletion(binding, before) {
		return nil
	}
	return g.binding(ctx, "rolebindings", binding.Name, binding.RoleRef, namespaceOf(ctx))
}

func (g *guard) clusterRoleBinding(ctx context.Context, obj, old runtime.Object) error {
	binding, ok := obj.(*rbacv1.ClusterRoleBinding)
	if !ok {
		return unexpected(obj)
	}
	if before, ok := old.(*rbacv1.ClusterRoleBinding); ok && onlyForDeletion(binding, before) {
		return nil
	}
	return g.binding(ctx, "clusterrolebindings", binding.Name, binding.RoleRef, "")
}

// binding checks that the writer may bind the role that ref names.
func (g *guard) binding(ctx context.Context, resource, name string, ref rbacv1.RoleRef, namespace string) error {
	if exempt(ctx) {
		return nil
	}
	roles := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}[ref.Kind]
	if roles == "" {
		return nil // the validation, which comes next, refuses it
	}
	if g.allowed(ctx, "bind", roles, ref.Name, namespace) {
		return nil
	}
	rules, err := g.rules.RulesIn(ctx, ref, namespace)
	if err != nil {
		return err
	}
	return forbidden(resource, name, g.covers(ctx, rules))
}

// allowed asks whether the writer has a verb on a role.
func (g *guard) allowed(ctx context.Context, verb, resource, name, namespace string) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok || g.authorizer == nil {
		return false
	}
	decision, _, err := g.authorizer.Authorize(ctx, authorizer.AttributesRecord{
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

// covers checks that the writer has all of the rules.
func (g *guard) covers(ctx context.Context, rules []rbacv1.PolicyRule) error {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok || g.rules == nil {
		return errors.New("no user on context")
	}
	own, err := g.rules.RulesOf(ctx, u, namespaceOf(ctx))
	if coversWhole(own, rules) {
		return nil
	}
	if n := combinations(rules); n > maxComparisons/max(len(own), 1) {
		return fmt.Errorf("the rules are too many to be compared with those of user %q: write smaller roles, or ask somebody who may do everything", u.GetName())
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

// exempt reports whether the writer may do anything anyway.
func exempt(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup)
}

func namespaceOf(ctx context.Context) string {
	namespace, _ := genericapirequest.NamespaceFrom(ctx)
	return namespace
}

// onlyForDeletion reports whether an update changes owner references and
// finalizers only: the garbage collector, which has no rules of its own to
// give, must be able to.
func onlyForDeletion(obj, old runtime.Object) bool {
	obj, old = obj.DeepCopyObject(), old.DeepCopyObject()
	meta, ok := obj.(metav1.Object)
	before, okBefore := old.(metav1.Object)
	if !ok || !okBefore || before.GetUID() == "" {
		return false // an update that creates
	}
	meta.SetOwnerReferences(before.GetOwnerReferences())
	meta.SetFinalizers(before.GetFinalizers())
	meta.SetSelfLink(before.GetSelfLink())
	meta.SetManagedFields(before.GetManagedFields())
	return equality.Semantic.DeepEqual(obj, old)
}

func forbidden(resource, name string, cause error) error {
	if cause == nil {
		return nil
	}
	return apierrors.NewForbidden(rbacv1.Resource(resource), name, cause)
}

func unexpected(obj runtime.Object) error {
	return apierrors.NewBadRequest(fmt.Sprintf("unexpected object of type %T", obj))
}
