package tenancy

import (
	"maps"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetPhaseLabels sets the labels of a Workspace or LogicalCluster for its phase, initializers and terminators, and
// removes outdated ones. Other labels are kept. The caller must own obj.
func SetPhaseLabels(
	obj metav1.Object, phase corev1alpha1.LogicalClusterPhaseType,
	initializers []corev1alpha1.LogicalClusterInitializer, terminators []corev1alpha1.LogicalClusterTerminator,
) {
	want := map[string]string{tenancyv1alpha1.WorkspacePhaseLabel: string(phase)}
	for _, initializer := range initializers {
		key, value := initialization.InitializerToLabel(initializer)
		want[key] = value
	}
	for _, terminator := range terminators {
		key, value := termination.TerminatorToLabel(terminator)
		want[key] = value
	}
	labels := obj.GetLabels()
	maps.DeleteFunc(labels, func(key, _ string) bool {
		_, wanted := want[key]
		return !wanted && (strings.HasPrefix(key, tenancyv1alpha1.WorkspaceInitializerLabelPrefix) ||
			strings.HasPrefix(key, tenancyv1alpha1.WorkspaceTerminatorLabelPrefix))
	})
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, want)
	obj.SetLabels(labels)
}

// HasContent reports whether a logical cluster in this phase is available to users.
func HasContent(phase corev1alpha1.LogicalClusterPhaseType) bool {
	return phase != "" && phase != corev1alpha1.LogicalClusterPhaseScheduling && phase != corev1alpha1.LogicalClusterPhaseInitializing
}
