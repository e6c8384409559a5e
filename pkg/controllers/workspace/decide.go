package workspace

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// regionLabel is the region of a shard. Workspaces that are placed on the shard get the same label.
//
//reference:metadata Shard, Workspace | administrators; workspace controller
const regionLabel = "region"

type facts struct {
	parent   *corev1alpha1.LogicalCluster // that contains the Workspace
	shards   []*corev1alpha1.Shard
	observed func(*corev1alpha1.Shard) shardObservation
	types    tenancy.TypeLookup
	newName  func() logicalcluster.Name
}

// claimed reports whether claim has been applied to the Workspace.
func claimed(ws *tenancyv1alpha1.Workspace) bool {
	return ws.Annotations[tenancy.ClusterAnnotation] != "" && ws.Annotations[shardAnnotation] != "" &&
		ws.Spec.Cluster != "" && ws.Spec.URL != "" && slices.Contains(ws.Finalizers, workspaceFinalizer)
}

// claim assigns a logical cluster, a shard, a type and a URL to a Workspace. Assigned values do not change.
func claim(ws *tenancyv1alpha1.Workspace, in facts) (*tenancyv1alpha1.Workspace, *problem) {
	types, err := in.types.Allowed(ws, in.parent)
	if err != nil {
		return ws, problemf(reasonTypeInvalid, "%v", err)
	}
	ws = ws.DeepCopy()
	cluster := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation])
	if cluster == "" {
		cluster = in.newName()
	}
	var shard *corev1alpha1.Shard
	if name := ws.Annotations[shardAnnotation]; name != "" {
		i := slices.IndexFunc(in.shards, func(s *corev1alpha1.Shard) bool { return s.Name == name })
		if i < 0 {
			return ws, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "the chosen shard %q is no longer registered", name)
		}
		shard = in.shards[i]
	} else {
		var p *problem
		if shard, p = chooseShard(ws, cluster, in.shards, in.observed); p != nil {
			return ws, p
		}
	}

	metav1.SetMetaDataAnnotation(&ws.ObjectMeta, tenancy.ClusterAnnotation, cluster.String())
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

// pathOf returns the path of a Workspace in the logical cluster of parent. Home workspaces are not part of the tree.
func pathOf(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) logicalcluster.Path {
	if cluster := logicalcluster.From(ws); cluster == tenancy.HomesCluster {
		if owner, err := tenancy.OwnerName(ws.Annotations, cluster); err == nil && tenancy.HomeName(owner).String() == ws.Name {
			return tenancy.HomePath(owner)
		}
		return logicalcluster.NewPath(ws.Name)
	}
	return tenancy.PathOf(parent).Join(ws.Name)
}

// logicalClusterFor returns the LogicalCluster for a claimed Workspace on the shard self.
func logicalClusterFor(ws *tenancyv1alpha1.Workspace, in facts, self string) (*corev1alpha1.LogicalCluster, *problem) {
	types, err := in.types.Allowed(ws, in.parent)
	if err != nil {
		return nil, problemf(reasonTypeInvalid, "%v", err)
	}
	lc := &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: corev1alpha1.LogicalClusterName, Finalizers: []string{tenancy.ContentFinalizer},
			Labels: map[string]string{tenancy.OwnerShardLabel: self},
			Annotations: map[string]string{
				core.LogicalClusterPathAnnotationKey:            pathOf(ws, in.parent).String(),
				tenancyv1alpha1.LogicalClusterTypeAnnotationKey: types[0].ID(),
				shardAnnotation: ws.Annotations[shardAnnotation],
			},
		},
		Spec: corev1alpha1.LogicalClusterSpec{
			Owner: &corev1alpha1.LogicalClusterOwner{
				APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Resource: "workspaces", Name: ws.Name,
				Cluster: logicalcluster.From(ws).String(), UID: ws.UID,
			},
			// Users cannot access the Workspace of a home, so they must be able to delete the LogicalCluster itself.
			DirectlyDeletable: logicalcluster.From(ws) == tenancy.HomesCluster, Initializers: types.Initializers(),
			Terminators: types.Terminators(),
		},
	}
	if bindings := types.SystemBindings(in.types); bindings != "" {
		lc.Annotations[tenancy.SystemBindingsAnnotation] = bindings
	}
	if groups := cmp.Or(ws.Annotations[tenancy.RequiredGroupsAnnotation], in.parent.Annotations[tenancy.RequiredGroupsAnnotation]); groups != "" {
		lc.Annotations[tenancy.RequiredGroupsAnnotation] = groups
	}
	if p := copyCreator(ws, lc); p != nil {
		return nil, p
	}
	return lc, nil
}

func copyCreator(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) *problem {
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

// owns reports whether the LogicalCluster was created for this Workspace, and not for another one with the same name.
func owns(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) bool {
	owner := lc.Spec.Owner
	return owner != nil && owner.UID == ws.UID && owner.Name == ws.Name && owner.Cluster == logicalcluster.From(ws).String()
}

func withProblem(ws *tenancyv1alpha1.Workspace, in conditionsv1alpha1.ConditionType, p *problem) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	conditions.MarkFalse(ws, in, p.reason, conditionsv1alpha1.ConditionSeverityError, "%s", p.message)
	return ws
}

// isScheduling reports whether a Workspace may not have a logical cluster yet.
func isScheduling(ws *tenancyv1alpha1.Workspace) bool {
	return ws.Status.Phase == "" || ws.Status.Phase == corev1alpha1.LogicalClusterPhaseScheduling
}

func scheduled(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	conditions.MarkTrue(ws, tenancyv1alpha1.WorkspaceScheduled)
	if isScheduling(ws) {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	}
	return ws
}

func mirror(ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) *tenancyv1alpha1.Workspace {
	ws = scheduled(ws)
	ws.Status.Initializers = slices.Clone(lc.Status.Initializers)
	ws.Status.Terminators = slices.Clone(lc.Status.Terminators)
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
		if remaining := lc.Status.Initializers; len(remaining) > 0 {
			conditions.MarkFalse(ws, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedInitializerExists,
				conditionsv1alpha1.ConditionSeverityInfo, "Initializers still exist: %v", remaining)
		}
		// The condition of the default bindings is copied, because users look at the Workspace first.
		if bindings := conditions.Get(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized); conditions.IsFalse(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized) {
			conditions.Set(ws, bindings.DeepCopy())
		} else {
			conditions.Delete(ws, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
		}
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

// initialized reports whether the LogicalCluster needs external initializers to proceed, or has been initialized.
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

// withDeletingPhase returns the LogicalCluster, which is being deleted, with a phase for that even if its shard has not
// set it yet.
func withDeletingPhase(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	if lc.Status.Phase != corev1alpha1.LogicalClusterPhaseTerminating {
		lc = lc.DeepCopy()
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseDeleting
	}
	return lc
}

// markUnavailable marks the Workspace as unavailable because its LogicalCluster was lost.
func markUnavailable(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
	conditions.MarkFalse(ws, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedWorkspaceDisappeared,
		conditionsv1alpha1.ConditionSeverityError, "the LogicalCluster in %s no longer exists on shard %s: restore it, or delete the workspace",
		ws.Spec.Cluster, ws.Annotations[shardAnnotation])
	return ws
}

// label sets the labels for the phase, initializers and terminators. When the Workspace becomes Ready, its owner annotation is
// reduced to the user name, because its readers should not see groups and extra attributes.
func label(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	var owner struct {
		Username string `json:"username"`
	}
	if ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady && json.Unmarshal([]byte(ws.Annotations[ownerAnnotation]), &owner) == nil && owner.Username != "" {
		if short, err := json.Marshal(owner); err == nil {
			ws.Annotations[ownerAnnotation] = string(short)
		}
	}
	tenancy.SetPhaseLabels(ws, ws.Status.Phase, ws.Status.Initializers, ws.Status.Terminators)
	return ws
}

// Name is the name of the controller.
const Name = "workspace"

// Names of the SDK.
const (
	// shardAnnotation contains the name of the chosen shard.
	shardAnnotation = corev1alpha1.LogicalClusterShardAnnotationKey
	// ownerAnnotation contains the creator of a Workspace, as JSON.
	ownerAnnotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey
	// workspaceFinalizer is removed after the LogicalCluster was deleted.
	workspaceFinalizer = corev1alpha1.LogicalClusterFinalizerName
)

const (
	clusterNameLength = 16
	shardHashLength   = 8
)

// newClusterName returns a random name that is globally unique and cannot be guessed.
func newClusterName() logicalcluster.Name {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	return logicalcluster.Name(hash(random, clusterNameLength))
}

func shardHash(shard string) string { return hash([]byte(shard), shardHashLength) }

// hash returns the first characters of base36(sha224(data)).
func hash(data []byte, length int) string {
	sum := sha256.Sum224(data)
	return new(big.Int).SetBytes(sum[:]).Text(36)[:length]
}

// isRemote reports whether the logical cluster of a Workspace on self is placed on another shard.
func isRemote(ws *tenancyv1alpha1.Workspace, self string) bool {
	target := ws.Annotations[shardAnnotation]
	return target != "" && target != self
}

// isRequested reports whether a Workspace contains the request to another shard, if it needs one.
func isRequested(ws *tenancyv1alpha1.Workspace, self string) bool {
	return !isRemote(ws, self) || ws.Labels[tenancy.TargetLabel] != "" && ws.Annotations[tenancy.PlacementAnnotation] != ""
}

// requestPlacement adds the LogicalCluster to a Workspace, so that the target shard needs neither parent nor types.
func requestPlacement(ws *tenancyv1alpha1.Workspace, in facts, self string) (*tenancyv1alpha1.Workspace, *problem) {
	if !isRemote(ws, self) {
		return ws, nil
	}
	lc, p := logicalClusterFor(ws, in, self)
	if p != nil {
		return ws, p
	}
	// The Workspace contains the user until it is Ready.
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

// address sets the label that the target shard selects, and removes a fulfilled request. It modifies ws.
func address(ws *tenancyv1alpha1.Workspace, self string) *tenancyv1alpha1.Workspace {
	if isRemote(ws, self) {
		metav1.SetMetaDataLabel(&ws.ObjectMeta, tenancy.TargetLabel, ws.Annotations[shardAnnotation])
	}
	if !isScheduling(ws) {
		delete(ws.Annotations, tenancy.PlacementAnnotation)
	}
	return ws
}

// requestedLogicalCluster returns the LogicalCluster that a Workspace of another shard requests.
func requestedLogicalCluster(ws *tenancyv1alpha1.Workspace) (*corev1alpha1.LogicalCluster, error) {
	if name := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation]); !request.ValidName(name.String()) || name == core.RootCluster {
		return nil, fmt.Errorf("%q is not a valid name for the logical cluster of a workspace", name)
	}
	lc := &corev1alpha1.LogicalCluster{}
	if err := json.Unmarshal([]byte(ws.Annotations[tenancy.PlacementAnnotation]), lc); err != nil {
		return nil, fmt.Errorf("annotation %s does not contain a LogicalCluster: %w", tenancy.PlacementAnnotation, err)
	}
	if !owns(ws, lc) {
		return nil, fmt.Errorf("annotation %s contains a LogicalCluster of another workspace", tenancy.PlacementAnnotation)
	}
	if p := copyCreator(ws, lc); p != nil {
		return nil, fmt.Errorf("%s", p.message)
	}
	return lc, nil
}

const (
	// noticeDelay is the minimum duration of a state before an Event reports it. Shorter states are visible in conditions.
	noticeDelay = 5 * time.Second
	// reasonWaiting is the reason of the Event if no condition explains the delay.
	reasonWaiting = "WaitingForLogicalCluster"
)

type notice struct {
	kind, reason, message string
}

// notices returns the content of the Events that are due, and the time until the next one is due, or 0.
func notices(ws *tenancyv1alpha1.Workspace, now time.Time) (all []notice, next time.Duration) {
	since := func(t time.Time, report notice) {
		if wait := t.Add(noticeDelay).Sub(now); wait <= 0 {
			all = append(all, report)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	explained := false
	for _, c := range ws.Status.Conditions {
		if c.Status != corev1.ConditionFalse {
			continue
		}
		explained = true
		kind := corev1.EventTypeNormal
		if c.Severity == conditionsv1alpha1.ConditionSeverityError || c.Severity == conditionsv1alpha1.ConditionSeverityWarning {
			kind = corev1.EventTypeWarning
		}
		since(c.LastTransitionTime.Time, notice{kind, c.Reason, c.Message})
	}
	if !explained && ws.Spec.Mount == nil && !tenancy.HasContent(ws.Status.Phase) {
		message := "the workspace has no logical cluster yet"
		if ws.Spec.Cluster != "" {
			message = fmt.Sprintf("logical cluster %s on shard %q is not ready yet", ws.Spec.Cluster, ws.Annotations[shardAnnotation])
		}
		since(ws.CreationTimestamp.Time, notice{corev1.EventTypeNormal, reasonWaiting, message})
	}
	return all, next
}

// reported contains the last notices of each Workspace, to save requests: repeated Events have no effect.
type reported struct {
	table[map[notice]types.UID]
}

// fresh returns the notices that were not reported before, and remembers all.
func (t *reported) fresh(key client.Key, uid types.UID, all []notice) (fresh []notice) {
	before := ptr.Deref(t.get(key), nil)
	if len(all) == 0 {
		t.Delete(key)
		return nil
	}
	now := make(map[notice]types.UID, len(all))
	for _, w := range all {
		if now[w] = uid; before[w] != uid {
			fresh = append(fresh, w)
		}
	}
	t.Store(key, &now)
	return fresh
}

func eventIn(local *client.Factory) func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w notice) error {
	return func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w notice) error {
		return events.Record(ctx, local.Cluster(logicalcluster.From(ws).Path()), events.Event{
			About: corev1.ObjectReference{
				APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "Workspace", Name: ws.Name, UID: ws.UID,
			},
			Component: Name, Type: w.kind, Reason: w.reason, Message: w.message,
		}, w)
	}
}
