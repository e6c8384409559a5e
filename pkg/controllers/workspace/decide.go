package workspace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// regionLabel of a Shard says where it is, and goes to the Workspaces that are placed on it.
const regionLabel = "region"

// facts is what a claim is decided on.
type facts struct {
	// parent is the LogicalCluster that the Workspace is in.
	parent *corev1alpha1.LogicalCluster
	shards []*corev1alpha1.Shard
	// known tells what is known of a shard beside that.
	known func(*corev1alpha1.Shard) experience
	types tenancy.TypeLookup
	// newName makes names for logical clusters.
	newName func() logicalcluster.Name
}

// claimed reports whether the Workspace has everything that claim gives it.
func claimed(ws *tenancyv1alpha1.Workspace) bool {
	return ws.Annotations[tenancy.ClusterAnnotation] != "" && ws.Annotations[shardAnnotation] != "" &&
		ws.Spec.Cluster != "" && ws.Spec.URL != "" && slices.Contains(ws.Finalizers, workspaceFinalizer)
}

// claim returns the Workspace with a logical cluster, a shard, a type and a URL
// that are its own from then on. What a former claim has decided stays.
func claim(ws *tenancyv1alpha1.Workspace, in facts) (*tenancyv1alpha1.Workspace, *problem) {
	types, err := in.types.Allowed(ws, in.parent)
	if err != nil {
		return ws, problemf(reasonTypeInvalid, "%v", err)
	}
	ws = ws.DeepCopy()
	if ws.Annotations == nil {
		ws.Annotations = map[string]string{}
	}
	cluster := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation])
	if cluster == "" {
		cluster = in.newName()
	}
	var shard *corev1alpha1.Shard
	if name := ws.Annotations[shardAnnotation]; name != "" {
		if shard = shardNamed(in.shards, name); shard == nil {
			return ws, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "the chosen shard %q is not registered any more", name)
		}
	} else {
		var p *problem
		if shard, p = chooseShard(ws, cluster, in.shards, in.known); p != nil {
			return ws, p
		}
	}

	ws.Annotations[tenancy.ClusterAnnotation] = cluster.String()
	ws.Annotations[shardAnnotation] = shard.Name
	ws.Annotations[tenancy.ShardHashAnnotation] = shardHash(shard.Name)
	if !slices.Contains(ws.Finalizers, workspaceFinalizer) {
		ws.Finalizers = append(ws.Finalizers, workspaceFinalizer)
	}
	if ws.Spec.Type == nil {
		t := types[0]
		ws.Spec.Type = &tenancyv1alpha1.WorkspaceTypeReference{Name: tenancyv1alpha1.TypeName(t.Name), Path: t.Path.String()}
	}
	given := types.Labels()
	if region := shard.Labels[regionLabel]; region != "" {
		given[regionLabel] = region
	}
	for key, value := range given {
		if _, set := ws.Labels[key]; !set {
			metav1.SetMetaDataLabel(&ws.ObjectMeta, key, value)
		}
	}
	if ws.Spec.Cluster == "" {
		ws.Spec.Cluster = cluster.String()
	}
	if ws.Spec.URL == "" {
		ws.Spec.URL = externalURL(shard) + request.ClusterPath(pathOf(ws, in.parent).String())
	}
	return ws, nil
}

// pathOf returns the path of a Workspace in the logical cluster of parent. Homes are in no
// tree.
func pathOf(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) logicalcluster.Path {
	if cluster := logicalcluster.From(ws); cluster == tenancy.HomesCluster {
		if owner, err := tenancy.OwnerName(ws.Annotations, cluster); err == nil && tenancy.HomeName(owner).String() == ws.Name {
			return tenancy.HomePath(owner)
		}
		return logicalcluster.NewPath(ws.Name)
	}
	return tenancy.PathOf(parent).Join(ws.Name)
}

func shardNamed(shards []*corev1alpha1.Shard, name string) *corev1alpha1.Shard {
	for _, shard := range shards {
		if shard.Name == name {
			return shard
		}
	}
	return nil
}

// logicalClusterFor returns the LogicalCluster of a Workspace that is claimed.
// self is the shard of the Workspace.
func logicalClusterFor(ws *tenancyv1alpha1.Workspace, in facts, self string) (*corev1alpha1.LogicalCluster, *problem) {
	types, err := in.types.Allowed(ws, in.parent)
	if err != nil {
		return nil, problemf(reasonTypeInvalid, "%v", err)
	}
	lc := &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name:       corev1alpha1.LogicalClusterName,
			Finalizers: []string{tenancy.ContentFinalizer},
			Labels:     map[string]string{tenancy.OwnerShardLabel: self},
			Annotations: map[string]string{
				core.LogicalClusterPathAnnotationKey:            pathOf(ws, in.parent).String(),
				tenancyv1alpha1.LogicalClusterTypeAnnotationKey: types[0].ID(),
				shardAnnotation: ws.Annotations[shardAnnotation],
			},
		},
		Spec: corev1alpha1.LogicalClusterSpec{
			Owner: &corev1alpha1.LogicalClusterOwner{
				APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(),
				Resource:   "workspaces",
				Name:       ws.Name,
				Cluster:    logicalcluster.From(ws).String(),
				UID:        ws.UID,
			},
			// Nobody but the system sees the Workspace of a home.
			DirectlyDeletable: logicalcluster.From(ws) == tenancy.HomesCluster,

			Initializers: types.Initializers(),
			Terminators:  types.Terminators(),
		},
	}
	if bindings := types.SystemBindings(in.types); bindings != "" {
		lc.Annotations[tenancy.SystemBindingsAnnotation] = bindings
	}
	if groups := cmp.Or(ws.Annotations[tenancy.RequiredGroupsAnnotation], in.parent.Annotations[tenancy.RequiredGroupsAnnotation]); groups != "" {
		lc.Annotations[tenancy.RequiredGroupsAnnotation] = groups
	}
	if p := nameCreator(ws, lc); p != nil {
		return nil, p
	}
	return lc, nil
}

// nameCreator has the LogicalCluster say who has created the Workspace.
func nameCreator(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) *problem {
	owner := ws.Annotations[ownerAnnotation]
	if owner == "" {
		return nil
	}
	var user authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(owner), &user); err != nil {
		return problemf(tenancyv1alpha1.WorkspaceReasonReasonUnknown, "annotation %s is not a user: %v", ownerAnnotation, err)
	}
	lc.Annotations[ownerAnnotation] = owner
	lc.Spec.CreatedBy = &corev1alpha1.OwnerUserInfo{Username: user.Username, Groups: user.Groups, UID: user.UID, Extra: user.Extra}
	return nil
}

// owns reports whether the LogicalCluster was created for exactly this Workspace.
func owns(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) bool {
	owner := lc.Spec.Owner
	return owner != nil && owner.UID == ws.UID && owner.Name == ws.Name && owner.Cluster == logicalcluster.From(ws).String()
}

// unscheduled returns the Workspace with its problem told.
func unscheduled(ws *tenancyv1alpha1.Workspace, p *problem) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	conditions.MarkFalse(ws, tenancyv1alpha1.WorkspaceScheduled, p.reason, conditionsv1alpha1.ConditionSeverityError, "%s", p.message)
	return ws
}

// isScheduling reports whether a Workspace may still wait for its logical cluster.
func isScheduling(ws *tenancyv1alpha1.Workspace) bool {
	return ws.Status.Phase == "" || ws.Status.Phase == corev1alpha1.LogicalClusterPhaseScheduling
}

// scheduled returns the Workspace as it is when its LogicalCluster exists.
func scheduled(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	conditions.MarkTrue(ws, tenancyv1alpha1.WorkspaceScheduled)
	if isScheduling(ws) {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	}
	return ws
}

// mirror returns the Workspace with what its LogicalCluster tells.
func mirror(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) *tenancyv1alpha1.Workspace {
	ws = scheduled(ws)
	ws.Status.Initializers = slices.Clone(lc.Status.Initializers)
	ws.Status.Terminators = slices.Clone(lc.Status.Terminators)
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
		if left := lc.Status.Initializers; len(left) > 0 {
			conditions.MarkFalse(ws, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedInitializerExists,
				conditionsv1alpha1.ConditionSeverityInfo, "Initializers still exist: %v", left)
		}
		tellBindings(ws, lc)
	case corev1alpha1.LogicalClusterPhaseTerminating, corev1alpha1.LogicalClusterPhaseDeleting:
		ws.Status.Phase = lc.Status.Phase
		if progress := conditions.Get(lc, tenancyv1alpha1.WorkspaceContentDeleted); progress != nil {
			conditions.Set(ws, progress.DeepCopy())
		}
	default:
		ws.Status.Phase = lc.Status.Phase
		conditions.MarkTrue(ws, tenancyv1alpha1.WorkspaceInitialized)
		conditions.Delete(ws, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
	}
	return ws
}

// tellBindings says in the Workspace what keeps it waiting for its default bindings, as long
// as it waits for them: its owner looks there first.
func tellBindings(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) {
	if conditions.IsFalse(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized) {
		conditions.Set(ws, conditions.Get(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized).DeepCopy())
		return
	}
	conditions.Delete(ws, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
}

// initialized reports whether the LogicalCluster has come as far as it will without
// anybody else's help.
func initialized(lc *corev1alpha1.LogicalCluster) bool {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling:
		return false
	case corev1alpha1.LogicalClusterPhaseInitializing:
		return len(lc.Status.Initializers) > 0
	default:
		return true
	}
}

// ending returns the LogicalCluster, which is being deleted, with a phase that
// says so, even if its shard has not come to it yet.
func ending(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	switch lc.Status.Phase {
	case corev1alpha1.LogicalClusterPhaseTerminating, corev1alpha1.LogicalClusterPhaseDeleting:
		return lc
	default:
		lc = lc.DeepCopy()
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseDeleting
		return lc
	}
}

// disappeared returns the Workspace as it is when its LogicalCluster is gone
// although nobody deleted it.
func disappeared(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
	conditions.MarkFalse(ws, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedWorkspaceDisappeared,
		conditionsv1alpha1.ConditionSeverityError, "the LogicalCluster in %s does not exist any more on shard %s: restore it, or delete the workspace",
		ws.Spec.Cluster, ws.Annotations[shardAnnotation])
	return ws
}

// deleting returns the Workspace, which is being deleted, with the reason why it
// still exists.
func deleting(ws *tenancyv1alpha1.Workspace, reason, format string, args ...any) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	conditions.MarkFalse(ws, tenancyv1alpha1.WorkspaceContentDeleted, reason, conditionsv1alpha1.ConditionSeverityError, "%s", fmt.Sprintf(format, args...))
	return ws
}

// label returns the Workspace with the labels by which it is found: its phase,
// initializers and terminators. When it is Ready, of its creator the name is left:
// who may read the Workspace need not know groups and extra attributes.
func label(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	if ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady {
		shortenOwner(ws)
	}
	tenancy.SetPhaseLabels(ws, ws.Status.Phase, ws.Status.Initializers, ws.Status.Terminators)
	return ws
}

// shortenOwner leaves the name in the annotation that says who has created a Workspace.
// The LogicalCluster has the whole.
func shortenOwner(ws *tenancyv1alpha1.Workspace) {
	owner := struct {
		Username string `json:"username"`
	}{}
	if json.Unmarshal([]byte(ws.Annotations[ownerAnnotation]), &owner) != nil || owner.Username == "" {
		return // there is none, or not as the system writes it
	}
	short, err := json.Marshal(owner)
	if err == nil {
		ws.Annotations[ownerAnnotation] = string(short)
	}
}
