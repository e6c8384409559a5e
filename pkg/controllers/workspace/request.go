package workspace

import (
	"encoding/json"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// elsewhere reports whether the logical cluster of a Workspace is on another shard than the
// Workspace, which is on self.
func elsewhere(ws *tenancyv1alpha1.Workspace, self string) bool {
	target := ws.Annotations[shardAnnotation]
	return target != "" && target != self
}

// asks reports whether a Workspace has what asks another shard for its logical cluster, if
// it needs that.
func asks(ws *tenancyv1alpha1.Workspace, self string) bool {
	return !elsewhere(ws, self) || ws.Labels[tenancy.TargetLabel] != "" && ws.Annotations[tenancy.PlacementAnnotation] != ""
}

// ask returns the Workspace, which is claimed, with what asks another shard for its
// LogicalCluster. The owner decides what that is: the target need not know the parent and
// the types.
func ask(ws *tenancyv1alpha1.Workspace, in facts, self string) (*tenancyv1alpha1.Workspace, *problem) {
	if !elsewhere(ws, self) {
		return ws, nil
	}
	lc, p := logicalClusterFor(ws, in, self)
	if p != nil {
		return ws, p
	}
	// The Workspace names the user already, and no longer when it is Ready.
	delete(lc.Annotations, ownerAnnotation)
	lc.Spec.CreatedBy = nil
	encoded, err := json.Marshal(lc)
	if err != nil {
		return ws, problemf(tenancyv1alpha1.WorkspaceReasonReasonUnknown, "encoding the LogicalCluster: %v", err)
	}
	ws = ws.DeepCopy()
	ws.Annotations[tenancy.PlacementAnnotation] = string(encoded)
	return address(ws, self), nil
}

// address gives a Workspace the label by which the shard of its logical cluster finds it, and
// takes away what asked that shard, when it has been answered. It changes ws.
func address(ws *tenancyv1alpha1.Workspace, self string) *tenancyv1alpha1.Workspace {
	if elsewhere(ws, self) {
		metav1.SetMetaDataLabel(&ws.ObjectMeta, tenancy.TargetLabel, ws.Annotations[shardAnnotation])
	}
	if !isScheduling(ws) {
		delete(ws.Annotations, tenancy.PlacementAnnotation)
	}
	return ws
}

// askedFor returns the LogicalCluster that a Workspace of another shard asks for.
func askedFor(ws *tenancyv1alpha1.Workspace) (*corev1alpha1.LogicalCluster, error) {
	if name := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation]); !request.ValidName(name.String()) || name == core.RootCluster {
		return nil, fmt.Errorf("%q is no name for a logical cluster of a workspace", name)
	}
	lc := &corev1alpha1.LogicalCluster{}
	if err := json.Unmarshal([]byte(ws.Annotations[tenancy.PlacementAnnotation]), lc); err != nil {
		return nil, fmt.Errorf("annotation %s is not a LogicalCluster: %w", tenancy.PlacementAnnotation, err)
	}
	if !owns(ws, lc) {
		return nil, fmt.Errorf("annotation %s has a LogicalCluster of another workspace", tenancy.PlacementAnnotation)
	}
	if p := nameCreator(ws, lc); p != nil {
		return nil, fmt.Errorf("%s", p.message)
	}
	return lc, nil
}
