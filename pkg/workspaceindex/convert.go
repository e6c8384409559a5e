package workspaceindex

import (
	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

// LogicalClusterOf returns what a LogicalCluster object announces.
func LogicalClusterOf(obj *corev1alpha1.LogicalCluster) LogicalCluster {
	_, migrating := obj.Annotations[tenancy.MigratingAnnotation]
	return LogicalCluster{
		Name:      logicalcluster.From(obj),
		Shard:     obj.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey],
		Phase:     obj.Status.Phase,
		Migrating: migrating,
		Deleting:  obj.DeletionTimestamp != nil,
		Type:      obj.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey],
		Created:   obj.CreationTimestamp.Unix(),
	}
}

// WorkspaceOf returns what a Workspace object announces.
func WorkspaceOf(obj *tenancyv1alpha1.Workspace) Workspace {
	parent := logicalcluster.From(obj)
	var owner Owner
	if !tenancy.HasContent(obj.Status.Phase) {
		name, _ := tenancy.OwnerName(obj.Annotations, parent) // workspaces without an owner have no owner name
		owner = OwnerNamed(name)
	}
	w := Workspace{
		Parent:  parent,
		Name:    obj.Name,
		Cluster: logicalcluster.Name(obj.Spec.Cluster),
		Owner:   owner,
		Phase:   obj.Status.Phase,
		Mounted: obj.Spec.Mount != nil,
	}
	if w.Mounted {
		w.Mount = obj.Spec.URL
	}
	return w
}
