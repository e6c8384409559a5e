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

// keeper keeps objects of one resource as they are shipped.
type keeper[T client.Object, L runtime.Object] struct {
	get     func(key client.Key) (T, error)
	clients *client.Client[T, L]
	// merge returns existing with what it lacks of want.
	merge func(existing, want T) (T, error)
}

// ensure creates what is missing of wanted, and completes what is not as it
// was shipped.
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

// mergeRole adds the rules of want that existing lacks, unless existing opts
// out. Rules that somebody has added stay.
func mergeRole(existing, want *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
	compared, err := (&reconciliation.ReconcileRoleOptions{
		Role:   reconciliation.ClusterRoleRuleOwner{ClusterRole: want.DeepCopy()},
		Client: comparedRole{existing},
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

// mergeBinding is mergeRole for the subjects of bindings.
func mergeBinding(existing, want *rbacv1.ClusterRoleBinding) (*rbacv1.ClusterRoleBinding, error) {
	if existing.RoleRef != want.RoleRef {
		return nil, fmt.Errorf("it binds %s instead of %s: delete it, and it is created again", existing.RoleRef.Name, want.RoleRef.Name)
	}
	compared, err := (&reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: want.DeepCopy()},
		Client:      comparedBinding{existing},
		// The flag says which groups, also when there are fewer.
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

// errCompareOnly is the answer to writes of what only compares.
var errCompareOnly = errors.New("only compares")

// comparedRole gives the existing role to a comparison, which writes nothing.
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

// comparedBinding is comparedRole for bindings; only Get is ever called.
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
