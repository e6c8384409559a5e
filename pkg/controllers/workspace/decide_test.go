package workspace

import (
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func shippedTypes(t *testing.T) tenancy.TypeLookup {
	t.Helper()
	shipped, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	types := map[string]*tenancyv1alpha1.WorkspaceType{}
	for _, wt := range shipped {
		wt.Annotations = map[string]string{logicalcluster.AnnotationKey: "root"}
		types["root:"+wt.Name] = wt
	}
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		wt, ok := types[path.Join(string(name)).String()]
		return wt, ok
	}
}

func organization() *corev1alpha1.LogicalCluster {
	return &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName,
		Annotations: map[string]string{
			core.LogicalClusterPathAnnotationKey: "root:org", logicalcluster.AnnotationKey: "parent",
			tenancyv1alpha1.LogicalClusterTypeAnnotationKey: "root:organization",
		},
	}}
}

func newWorkspace(name string) *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "uid-" + "w", ResourceVersion: "1", Annotations: map[string]string{logicalcluster.AnnotationKey: "parent"},
	}}
}

func factsOf(t *testing.T, shards ...*corev1alpha1.Shard) facts {
	t.Helper()
	return facts{
		parent: organization(), shards: shards, observed: nothing, types: shippedTypes(t),
		newName: func() logicalcluster.Name { return "fresh" },
	}
}

func TestClaim(t *testing.T) {
	got, p := claim(newWorkspace("w"), factsOf(t, shard("a")))
	require.Nil(t, p)
	require.True(t, claimed(got))
	require.Equal(t, "fresh", got.Spec.Cluster)
	require.Equal(t, "https://proxy:6443/clusters/root:org:w", got.Spec.URL)
	require.Equal(t, &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}, got.Spec.Type)
	require.Equal(t, []string{workspaceFinalizer}, got.Finalizers)
	require.Equal(t, map[string]string{
		logicalcluster.AnnotationKey: "parent", tenancy.ClusterAnnotation: "fresh", shardAnnotation: "a", tenancy.ShardHashAnnotation: shardHash("a"),
	}, got.Annotations)

	retry, p := claim(got, factsOf(t, shard("b"), shard("a")))
	require.Nil(t, p)
	require.Equal(t, got, retry, "a claim must not change")

	half := newWorkspace("w")
	half.Annotations[tenancy.ClusterAnnotation], half.Annotations[shardAnnotation] = "older", "a"
	got, p = claim(half, factsOf(t, shard("b"), shard("a", unschedulable)))
	require.Nil(t, p)
	require.Equal(t, "older", got.Spec.Cluster, "the claimed name must not change")
	require.Equal(t, "a", got.Annotations[shardAnnotation], "the chosen shard must not change")

	_, p = claim(half, factsOf(t, shard("b")))
	require.NotNil(t, p)
	require.Contains(t, p.message, `chosen shard "a" is no longer registered`)
}

// TestClaimSetsTheRegion: a Workspace gets the region label of its shard, unless it has one.
func TestClaimSetsTheRegion(t *testing.T) {
	in := factsOf(t, shard("a", func(s *corev1alpha1.Shard) { s.Labels["region"] = "eu" }))
	shipped := in.types
	in.types = func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		wt, ok := shipped(path, name)
		if ok {
			wt = wt.DeepCopy()
			wt.Spec.AdditionalWorkspaceLabels = map[string]string{"region": "of the type", "tier": "gold"}
		}
		return wt, ok
	}
	ws := newWorkspace("w")
	got, p := claim(ws, in)
	require.Nil(t, p)
	require.Equal(t, map[string]string{"region": "eu", "tier": "gold"}, got.Labels)

	ws.Labels = map[string]string{"region": "mine"}
	got, p = claim(ws, in)
	require.Nil(t, p)
	require.Equal(t, "mine", got.Labels["region"])

	in.shards = []*corev1alpha1.Shard{shard("b")}
	got, p = claim(newWorkspace("w"), in)
	require.Nil(t, p)
	require.Equal(t, "of the type", got.Labels["region"])
}

func TestClaimKeepsRequestedType(t *testing.T) {
	ws := newWorkspace("w")
	ws.Spec.Type = &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"}
	got, p := claim(ws, factsOf(t, shard("a")))
	require.Nil(t, p)
	require.Empty(t, got.Spec.Type.Path, "the path of a type is immutable, even if it is absent")
}

func TestLogicalClusterFor(t *testing.T) {
	w := factsOf(t, shard("a"))
	ws, p := claim(newWorkspace("w"), w)
	require.Nil(t, p)
	ws.Annotations[ownerAnnotation] = `{"username":"alice","groups":["team"]}`
	lc, p := logicalClusterFor(ws, w, "here")
	require.Nil(t, p)
	require.Equal(t, map[string]string{
		"kcp.io/path": "root:org:w", "internal.tenancy.kcp.io/type": "root:universal", "core.kcp.io/shard": "a",
		"experimental.tenancy.kcp.io/owner": `{"username":"alice","groups":["team"]}`,
	}, lc.Annotations)
	require.Equal(t, "alice", lc.Spec.CreatedBy.Username)
	require.Equal(t, []string{tenancy.ContentFinalizer}, lc.Finalizers)
	require.Equal(t, "here", lc.Labels[tenancy.OwnerShardLabel])
	require.True(t, owns(ws, lc))
	key, ok := ownerOf(lc)
	require.True(t, ok)
	require.Equal(t, "parent|w", key.String())

	other := ws.DeepCopy()
	other.UID = "another"
	require.False(t, owns(other, lc), "a workspace with the same name and another UID must not be the owner")

	ws.Annotations[ownerAnnotation] = "alice"
	_, p = logicalClusterFor(ws, w, "here")
	require.NotNil(t, p)
	require.Contains(t, p.message, "is not a user")
}

func TestMirror(t *testing.T) {
	for name, tc := range map[string]struct {
		phase, want  corev1alpha1.LogicalClusterPhaseType
		initializers []corev1alpha1.LogicalClusterInitializer
		initialized  corev1.ConditionStatus
	}{
		"new":                    {phase: "", want: "Initializing"},
		"scheduling":             {phase: "Scheduling", want: "Initializing"},
		"initializing":           {phase: "Initializing", want: "Initializing"},
		"waits for initializers": {phase: "Initializing", initializers: []corev1alpha1.LogicalClusterInitializer{"a:b"}, want: "Initializing", initialized: corev1.ConditionFalse},
		"ready":                  {phase: "Ready", want: "Ready", initialized: corev1.ConditionTrue},
		"inactive":               {phase: "Inactive", want: "Inactive", initialized: corev1.ConditionTrue},
		"unavailable":            {phase: "Unavailable", want: "Unavailable", initialized: corev1.ConditionTrue},
		"terminating":            {phase: "Terminating", want: "Terminating"},
		"deleting":               {phase: "Deleting", want: "Deleting"},
	} {
		t.Run(name, func(t *testing.T) {
			lc := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{Phase: tc.phase, Initializers: tc.initializers}}
			got := mirror(newWorkspace("w"), lc)
			require.Equal(t, tc.want, got.Status.Phase)
			require.Equal(t, tc.initializers, got.Status.Initializers)
			require.True(t, conditions.IsTrue(got, tenancyv1alpha1.WorkspaceScheduled))
			if c := conditions.Get(got, tenancyv1alpha1.WorkspaceInitialized); tc.initialized != "" {
				require.Equal(t, tc.initialized, c.Status)
			} else {
				require.Nil(t, c)
			}
			require.Equal(t, got, mirror(got, lc), "mirror must be idempotent")
		})
	}
}

// TestMirrorReportsDefaultBindings: a Workspace reports why it waits for default bindings only while it waits.
func TestMirrorReportsDefaultBindings(t *testing.T) {
	lc := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{
		Phase: corev1alpha1.LogicalClusterPhaseInitializing, Initializers: []corev1alpha1.LogicalClusterInitializer{tenancyv1alpha1.WorkspaceAPIBindingsInitializer},
	}}
	conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized, "APIBindingErrors", conditionsv1alpha1.ConditionSeverityError, "create it")
	ws := mirror(newWorkspace("w"), lc)
	require.Equal(t, "create it", conditions.GetMessage(ws, tenancyv1alpha1.WorkspaceAPIBindingsInitialized))
	conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
	require.False(t, conditions.Has(mirror(ws, lc), tenancyv1alpha1.WorkspaceAPIBindingsInitialized), "the condition must be absent, because another initializer may remain")
	lc.Status.Phase, lc.Status.Initializers = "Ready", nil
	require.False(t, conditions.Has(mirror(ws, lc), tenancyv1alpha1.WorkspaceAPIBindingsInitialized))
}

func TestMirrorReportsProgressOfDeletion(t *testing.T) {
	lc := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{Phase: "Ready"}}
	conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceContentDeleted, "ContentRemaining", conditionsv1alpha1.ConditionSeverityInfo, "two objects")
	got := mirror(newWorkspace("w"), withDeletingPhase(lc))
	require.Equal(t, corev1alpha1.LogicalClusterPhaseDeleting, got.Status.Phase)
	require.Equal(t, "two objects", conditions.GetMessage(got, tenancyv1alpha1.WorkspaceContentDeleted))
}

func TestLabel(t *testing.T) {
	ws := newWorkspace("w")
	stale, _ := initialization.InitializerToLabel("old:one")
	ws.Labels = map[string]string{"mine": "x", stale: "y", tenancyv1alpha1.WorkspacePhaseLabel: "Scheduling"}
	ws.Status.Phase = "Initializing"
	ws.Status.Initializers = []corev1alpha1.LogicalClusterInitializer{"a:b"}
	key, value := initialization.InitializerToLabel("a:b")
	got := label(ws)
	require.Equal(t, map[string]string{"mine": "x", key: value, tenancyv1alpha1.WorkspacePhaseLabel: "Initializing"}, got.Labels)
	require.Equal(t, got, label(got))
	require.Contains(t, ws.Labels, stale, "the given object is shared and must not be changed")
}

func TestUnfinished(t *testing.T) {
	waits, ready, deleting := newWorkspace("waits"), newWorkspace("ready"), newWorkspace("deleting")
	ready.Status.Phase, deleting.Status.Phase = "Ready", "Ready"
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	require.Len(t, unfinished([]*tenancyv1alpha1.Workspace{waits, ready, deleting}), 2)
}

func TestLogicalClusterRequiresTheGroupsOfItsWorkspaceOrParent(t *testing.T) {
	w := factsOf(t, shard("a"))
	ws, p := claim(newWorkspace("w"), w)
	require.Nil(t, p)
	w.parent = w.parent.DeepCopy()
	metav1.SetMetaDataAnnotation(&w.parent.ObjectMeta, "authorization.kcp.io/required-groups", "a,b;c")
	lc, p := logicalClusterFor(ws, w, "here")
	require.Nil(t, p)
	require.Equal(t, "a,b;c", lc.Annotations["authorization.kcp.io/required-groups"])
	metav1.SetMetaDataAnnotation(&ws.ObjectMeta, "authorization.kcp.io/required-groups", "d")
	lc, p = logicalClusterFor(ws, w, "here")
	require.Nil(t, p)
	require.Equal(t, "d", lc.Annotations["authorization.kcp.io/required-groups"], "the groups of the workspace must take precedence")
}

// TestOwnerIsShortened: the owner annotation of a Workspace that is Ready contains only the user name.
func TestOwnerIsShortened(t *testing.T) {
	const full = `{"username":"alice","uid":"1","groups":["team"],"extra":{"key":["value"]}}`
	for name, tc := range map[string]struct {
		phase           corev1alpha1.LogicalClusterPhaseType
		owner, expected string
	}{
		"Ready":         {corev1alpha1.LogicalClusterPhaseReady, full, `{"username":"alice"}`},
		"shortened":     {corev1alpha1.LogicalClusterPhaseReady, `{"username":"alice"}`, `{"username":"alice"}`},
		"Initializing":  {corev1alpha1.LogicalClusterPhaseInitializing, full, full},
		"no owner":      {corev1alpha1.LogicalClusterPhaseReady, "", ""},
		"invalid owner": {corev1alpha1.LogicalClusterPhaseReady, "alice", "alice"},
	} {
		t.Run(name, func(t *testing.T) {
			ws := newWorkspace("x")
			ws.Status.Phase = tc.phase
			if tc.owner != "" {
				ws.Annotations = map[string]string{ownerAnnotation: tc.owner}
			}
			require.Equal(t, tc.expected, label(ws).Annotations[ownerAnnotation])
		})
	}
}
