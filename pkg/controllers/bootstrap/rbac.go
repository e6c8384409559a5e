package bootstrap

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// policyOf returns the initial roles and bindings of a logical cluster.
// policyOf returns the roles and bindings that a logical cluster starts with.
func policyOf(cluster logicalcluster.Name, homeCreators []string) policy.Objects {
	switch cluster {
	case tenancy.AdminCluster:
		return policy.System()
	case core.RootCluster:
		return policy.Root(homeCreators...)
	default:
		return policy.Objects{}
	}
}

// keeper creates and completes the shipped objects of one resource.
type keeper[T client.Object, L runtime.Object] struct {
	get     func(key client.Key) (T, error)
	clients *client.Client[T, L]
	// merge adds missing parts of want to existing.
	merge func(existing, want T) (T, error)
}

func (k keeper[T, L]) ensure(ctx context.Context, cluster logicalcluster.Name, wanted []T) error {
	var errs []error
	for _, want := range wanted {
		if err := k.ensureOne(ctx, cluster, want); err != nil {
			errs = append(errs, fmt.Errorf("%T %s in %s: %w", want, want.GetName(), cluster, err))
		}
	}
	return errors.Join(errs...)
}

func (k keeper[T, L]) ensureOne(ctx context.Context, cluster logicalcluster.Name, want T) error {
	existing, err := k.get(client.Key{Cluster: cluster, Name: want.GetName()})
	if apierrors.IsNotFound(err) {
		if _, err = k.clients.Create(ctx, want, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			return err
		}
		existing, err = k.clients.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	merged, err := k.merge(existing, want)
	if err != nil {
		return err
	}
	_, err = reconcile.Commit(ctx, k.clients, existing, merged)
	return err
}

// mergeRole adds missing rules, unless existing opts out. Additional rules are retained.
func mergeRole(existing, want *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
	compared, err := (&reconciliation.ReconcileRoleOptions{
		Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: want.DeepCopy()}, Client: comparedRole{existing},
	}).Run()
	if err != nil {
		return nil, err
	}
	merged, ok := compared.Role.(reconciliation.ClusterRoleRuleOwner)
	if !ok || compared.Protected || compared.Operation == reconciliation.ReconcileNone {
		return existing, nil
	}
	return merged.ClusterRole, nil
}

// mergeBinding adds missing subjects, unless existing opts out.
func mergeBinding(existing, want *rbacv1.ClusterRoleBinding) (*rbacv1.ClusterRoleBinding, error) {
	if existing.RoleRef != want.RoleRef {
		return nil, fmt.Errorf("it references %s instead of %s: delete it, then it is recreated", existing.RoleRef.Name, want.RoleRef.Name)
	}
	compared, err := (&reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: want.DeepCopy()},
		Client:      comparedBinding{existing},
		// The groups are configured by a flag, which may also remove groups.
		RemoveExtraSubjects: want.Name == policy.HomeCreate,
	}).Run()
	if err != nil {
		return nil, err
	}
	merged, ok := compared.RoleBinding.(reconciliation.ClusterRoleBindingAdapter)
	if !ok || compared.Protected || compared.Operation == reconciliation.ReconcileNone {
		return existing, nil
	}
	return merged.ClusterRoleBinding, nil
}

var errCompareOnly = errors.New("read-only comparison")

// comparedRole returns the existing role to a comparison, which does not write.
type comparedRole struct{ existing *rbacv1.ClusterRole }

func (c comparedRole) Get(string, string) (reconciliation.RuleOwner, error) {
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: c.existing}, nil
}

func (comparedRole) Create(reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return nil, errCompareOnly
}

func (comparedRole) Update(reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return nil, errCompareOnly
}

// comparedBinding returns the existing binding to a comparison, which only calls Get.
type comparedBinding struct{ existing *rbacv1.ClusterRoleBinding }

func (c comparedBinding) Get(string, string) (reconciliation.RoleBinding, error) {
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: c.existing}, nil
}

func (comparedBinding) Delete(string, string, types.UID) error { return errCompareOnly }

func (comparedBinding) Create(reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return nil, errCompareOnly
}

func (comparedBinding) Update(reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return nil, errCompareOnly
}
