package rbac

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

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

// Group returns rbac.authorization.k8s.io/v1. With the zero Config it serves
// only to register the types.
func Group(c Config) resource.Group {
	guard := &guard{authorizer: c.Authorizer, rules: c.Rules}
	return resource.Group{
		GroupVersion: rbacv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			roles(c, guard),
			roleBindings(c, guard),
			clusterRoles(c, guard),
			clusterRoleBindings(c, guard),
		},
	}
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
