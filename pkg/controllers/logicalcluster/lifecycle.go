package logicalcluster

import (
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// advance returns the LogicalCluster one step further in its life, given that
// it is not being deleted and that what every logical cluster starts with
// exists. Metadata stays as it is.
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
		if conditions.IsFalse(lc, tenancyv1alpha1.WorkspaceInitialized) { // an administrator has said that it is
			conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
		}
	default:
		// Unavailable is set and lifted by whoever found the fault.
	}
	if lc.Status.Phase != corev1alpha1.LogicalClusterPhaseInitializing {
		return lc
	}
	if left := lc.Status.Initializers; len(left) > 0 {
		conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedInitializerExists,
			conditionsv1alpha1.ConditionSeverityInfo, "Initializers still exist: %v", left)
		return lc
	}
	// No initializer is left, or there never was one: one write instead of two.
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
	return lc
}

// untilRemarkable returns how long a new logical cluster need not say yet that it waits for
// its default bindings, which most have within milliseconds: one write instead of two.
// next is what it would say.
func untilRemarkable(lc, next *corev1alpha1.LogicalCluster, now time.Time) time.Duration {
	isNew := lc.Status.Phase == "" || lc.Status.Phase == corev1alpha1.LogicalClusterPhaseScheduling
	alone := len(next.Status.Initializers) == 1 && next.Status.Initializers[0] == tenancyv1alpha1.WorkspaceAPIBindingsInitializer
	if !isNew || !alone || conditions.GetReason(next, tenancyv1alpha1.WorkspaceAPIBindingsInitialized) != tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings {
		return 0
	}
	return lc.CreationTimestamp.Add(time.Second).Sub(now)
}

// terminate returns the LogicalCluster, which is being deleted, with its
// terminators named and its phase set. It is not inactive any more: what nobody
// can reach, nobody can delete.
func terminate(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	delete(lc.Annotations, corev1alpha1.LogicalClusterInactiveAnnotationKey)
	delete(lc.Annotations, corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy) //nolint:staticcheck // deprecated, and understood all the same
	switch lc.Status.Phase {
	case corev1alpha1.LogicalClusterPhaseDeleting:
		return lc
	case corev1alpha1.LogicalClusterPhaseTerminating:
	default:
		// It may have been deleted before it was initialized, or initialized by a release that did not set them then.
		lc.Status.Terminators = slices.Clone(lc.Spec.Terminators)
	}
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseDeleting
	if len(lc.Status.Terminators) > 0 {
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	}
	return lc
}

// label returns the LogicalCluster with the labels by which it is found: its
// phase, initializers and terminators.
func label(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	tenancy.SetPhaseLabels(lc, lc.Status.Phase, lc.Status.Initializers, lc.Status.Terminators)
	return lc
}

func keyOf(cluster logicalcluster.Name) []client.Key {
	return []client.Key{{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}}
}
