package plugin

import (
	"context"
	"fmt"
	"slices"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/pkg/client"
)

// waits reports whether a workspace is not ready or is being deleted.
func waits(ws *tenancyv1alpha1.Workspace) bool {
	return ws.DeletionTimestamp != nil || ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady
}

// eventsOf returns the Events of a workspace, or of all workspaces in a logical cluster if name is empty, sorted by time.
func eventsOf(ctx context.Context, scope client.Scope, name string) ([]corev1.Event, error) {
	clients, err := kubernetes.NewForConfigAndClient(scope.Config(), scope.HTTPClient())
	if err != nil {
		return nil, err
	}
	selected := fields.Set{"involvedObject.kind": "Workspace"}
	if name != "" {
		selected["involvedObject.name"] = name
	}
	list, err := clients.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: selected.AsSelector().String()})
	if err != nil {
		return nil, fmt.Errorf("listing the Events in %s: %w", scope, err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return lastSeen(&a).Time.Compare(lastSeen(&b).Time) })
	return list.Items, nil
}

// lastSeen is when an Event was last observed.
func lastSeen(e *corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return metav1.NewTime(e.EventTime.Time)
	default:
		return e.CreationTimestamp
	}
}
