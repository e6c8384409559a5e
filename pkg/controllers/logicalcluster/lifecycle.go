package logicalcluster

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// advance performs the next step of the status of a LogicalCluster that is not being deleted and whose initial objects
// exist. Metadata does not change.
func advance(lc *corev1alpha1.LogicalCluster, externalURL string) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	lc.Status.URL = strings.TrimSuffix(externalURL, "/") + request.ClusterPath(tenancy.PathOf(lc).String())

	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling:
		lc.Status.Initializers = slices.Clone(lc.Spec.Initializers)
		lc.Status.Terminators = slices.Clone(lc.Spec.Terminators)
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	case corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseInactive:
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
		if corev1alpha1.IsLogicalClusterInactive(lc.Annotations) {
			lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInactive
		}
		if conditions.IsFalse(lc, tenancyv1alpha1.WorkspaceInitialized) { // an administrator has set the phase
			conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
		}
	default:
		// Unavailable is set and reset by other components.
	}
	if lc.Status.Phase != corev1alpha1.LogicalClusterPhaseInitializing {
		return lc
	}
	if remaining := lc.Status.Initializers; len(remaining) > 0 {
		conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedInitializerExists,
			conditionsv1alpha1.ConditionSeverityInfo, "Initializers still exist: %v", remaining)
		return lc
	}
	// There is no initializer any more, or there never was one: one write instead of two.
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
	return lc
}

// untilReported returns the time for which a new logical cluster does not report that it waits for its default bindings. Most get
// them within milliseconds, which saves a write. next is the state to report.
func untilReported(lc, next *corev1alpha1.LogicalCluster, now time.Time) time.Duration {
	isNew := lc.Status.Phase == "" || lc.Status.Phase == corev1alpha1.LogicalClusterPhaseScheduling
	alone := len(next.Status.Initializers) == 1 && next.Status.Initializers[0] == tenancyv1alpha1.WorkspaceAPIBindingsInitializer
	if !isNew || !alone || conditions.GetReason(next, tenancyv1alpha1.WorkspaceAPIBindingsInitialized) != tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings {
		return 0
	}
	return lc.CreationTimestamp.Add(time.Second).Sub(now)
}

// terminate sets terminators and phase of a LogicalCluster that is being deleted, and removes the annotation for inactive
// ones, because content can only be deleted through an active logical cluster.
func terminate(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	delete(lc.Annotations, corev1alpha1.LogicalClusterInactiveAnnotationKey)
	delete(lc.Annotations, corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy) //nolint:staticcheck // deprecated, but supported
	switch lc.Status.Phase {
	case corev1alpha1.LogicalClusterPhaseDeleting:
		return lc
	case corev1alpha1.LogicalClusterPhaseTerminating:
	default:
		// It was deleted before initialization, or initialized by a release that did not set terminators.
		lc.Status.Terminators = slices.Clone(lc.Spec.Terminators)
	}
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseDeleting
	if len(lc.Status.Terminators) > 0 {
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	}
	return lc
}

func label(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	tenancy.SetPhaseLabels(lc, lc.Status.Phase, lc.Status.Initializers, lc.Status.Terminators)
	return lc
}

func keyOf(cluster logicalcluster.Name) []client.Key {
	return []client.Key{{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}}
}

// ownerBindingOf returns the binding for the owner annotation of a LogicalCluster that was never Ready, or nil.
func ownerBindingOf(lc *corev1alpha1.LogicalCluster) (*rbacv1.ClusterRoleBinding, error) {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
	default:
		return nil, nil //nolint:nilnil // already created
	}
	var parent logicalcluster.Name
	if lc.Spec.Owner != nil {
		parent = logicalcluster.Name(lc.Spec.Owner.Cluster)
	}
	name, err := tenancy.OwnerName(lc.Annotations, parent)
	if err != nil || name == "" {
		return nil, err
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: tenancy.OwnerBinding},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: policy.ClusterAdmin},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, nil
}

func createBinding(local *client.Factory) func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
	return func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
		_, err := kinds.ClusterRoleBindings.In(local.Cluster(cluster.Path())).Create(ctx, binding, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
}
