package workspace

import (
	"context"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

type readOnly struct{ *fake }

func (s readOnly) isRemote() bool { return true }

func (s readOnly) create(context.Context, logicalcluster.Name, *corev1alpha1.LogicalCluster) error {
	require.Fail(s.t, "the Workspace's shard must not create on another one")
	return nil
}

func (s readOnly) remove(context.Context, logicalcluster.Name, *corev1alpha1.LogicalCluster) error {
	require.Fail(s.t, "the Workspace's shard must not delete on another one")
	return nil
}

func (s readOnly) unused(context.Context, logicalcluster.Name) (bool, error) {
	require.Fail(s.t, "the Workspace's shard must not look for orphans on another one")
	return false, nil
}

func (f *fake) isRemote() bool { return false }

// there is the access of the Workspace's shard to the other one.
func (f *fake) there() logicalClusters {
	if f.placing {
		return readOnly{f}
	}
	return f
}

// owner is the Workspace's shard as seen by the other one.
type owner struct {
	*fake
	// seen is the observed Workspace; nil if it is up to date.
	seen *tenancyv1alpha1.Workspace
	// before is called before each response.
	before func()
}

func (o *owner) cached(client.Key) (*tenancyv1alpha1.Workspace, bool) {
	ws := o.seen
	if ws == nil {
		ws = o.ws
	}
	if ws == nil || ws.Labels[tenancy.TargetLabel] == "" {
		return nil, false
	}
	slim, err := slimWorkspace(ws)
	require.NoError(o.t, err)
	slim.Annotations[logicalcluster.AnnotationKey] = key.Cluster.String()
	return slim, true
}

func (o *owner) live(context.Context, client.Key) (*tenancyv1alpha1.Workspace, error) {
	if o.down {
		return nil, peers.ErrUnreachable
	}
	ws := o.ws
	if o.before != nil {
		o.before()
	}
	return ws, nil
}

// target is a new process of the shard of the logical cluster.
func (f *fake) target() (*placement, *owner) {
	o := &owner{fake: f}
	return &placement{
		self: f.ws.Annotations[shardAnnotation], now: time.Now,
		shard: func(string) (requester, bool) { return o, true },
		owned: func(key client.Key) []*corev1alpha1.LogicalCluster {
			key.Shard = ""
			return f.owned(key)
		},
		localClusters: f, orphans: newOrphans(nil),
	}, o
}

var requested = client.Key{Shard: "here", Cluster: key.Cluster, Name: key.Name}

func newPlaced(t *testing.T) *fake {
	t.Helper()
	f := newFake(t)
	f.placing = true
	return f
}

func (f *fake) claim(r *workspaceReconciler) {
	f.t.Helper()
	f.sync(r)
	require.NotEmpty(f.t, f.ws.Annotations[tenancy.PlacementAnnotation])
}

// place reconciles the request of the Workspace on the other shard.
func (f *fake) place(p *placement) reconcile.Result {
	f.t.Helper()
	result, err := p.reconcile(f.t.Context(), requested)
	require.NoError(f.t, err)
	return result
}

// placed has the other shard reconcile, and then the shard of the Workspace.
func (f *fake) placed(p *placement, r *workspaceReconciler) {
	f.t.Helper()
	f.place(p)
	f.othersWork()
	f.sync(r)
}

func TestTargetCreatesRequestedLogicalClusters(t *testing.T) {
	f := newPlaced(t)
	f.ws.Annotations[ownerAnnotation] = `{"username":"alice","groups":["staff"]}`
	r := f.process()
	require.Positive(t, f.sync(r).RequeueAfter, "the reconcile must be repeated if no event is received")
	require.Equal(t, f.ws.Annotations[shardAnnotation], f.ws.Labels[tenancy.TargetLabel])
	require.NotContains(t, f.ws.Annotations[tenancy.PlacementAnnotation], "alice", "the owner annotation of the Workspace must be the only copy")
	parent, err := r.parent(key.Cluster)
	require.NoError(t, err)
	want, p := logicalClusterFor(f.ws, facts{parent: parent, types: r.types}, "here")
	require.Nil(t, p)

	placing, _ := f.target()
	f.place(placing)
	require.Equal(t, want, f.clusters[logicalcluster.Name(f.ws.Spec.Cluster)], "the LogicalCluster must equal one that the Workspace's shard creates")
	for range 3 {
		f.place(placing)
	}
	f.othersWork()
	f.sync(r)
	require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)
	require.NotContains(t, f.ws.Annotations, tenancy.PlacementAnnotation)
	require.NotEmpty(t, f.ws.Labels[tenancy.TargetLabel], "the target must observe the deletion")
	require.Equal(t, []string{"write workspace", "create logical cluster", "write workspace"}, f.log)
	f.sync(r)
	require.Len(t, f.log, 3, "a Ready workspace must not be written")
	require.Nil(t, r.starts.get(client.KeyOf(f.ws)))

	f.delete()
	f.sync(r)
	require.Nil(t, f.clusters[logicalcluster.Name(f.ws.Spec.Cluster)].DeletionTimestamp)
	f.placed(placing, r)
	require.Nil(t, f.ws)
	require.Empty(t, f.clusters)
}

// TestLocalPlacementStoresNoRequest: a local logical cluster needs no request.
func TestLocalPlacementStoresNoRequest(t *testing.T) {
	f := newFake(t)
	f.ws.Annotations[shardAnnotation] = "a"
	r := f.process()
	r.self = "a"
	f.sync(r)
	require.Len(t, f.clusters, 1)
	require.NotContains(t, f.ws.Annotations, tenancy.PlacementAnnotation)
	require.NotContains(t, f.ws.Labels, tenancy.TargetLabel)
}

func TestTargetCreatesOnlyPendingLogicalClusters(t *testing.T) {
	for name, tc := range map[string]struct {
		change       func(f *fake, p *placement)
		fails, retry bool
	}{
		"deleting":                         {change: func(f *fake, _ *placement) { f.delete() }},
		"deleted":                          {change: func(f *fake, _ *placement) { f.ws = nil }},
		"ready":                            {change: func(f *fake, _ *placement) { f.ws.Status.Phase = corev1alpha1.LogicalClusterPhaseReady }},
		"claimed for another shard":        {change: func(_ *fake, p *placement) { p.self = "c" }},
		"unreachable shard":                {change: func(f *fake, _ *placement) { f.down = true }, retry: true},
		"replaced":                         {change: func(f *fake, _ *placement) { f.ws.UID = "another" }, fails: true},
		"name of a system logical cluster": {change: func(f *fake, _ *placement) { f.ws.Annotations[tenancy.ClusterAnnotation] = "root" }, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPlaced(t)
			f.claim(f.process())
			placing, o := f.target()
			o.seen = f.ws.DeepCopy()
			tc.change(f, placing)
			result, err := placing.reconcile(t.Context(), requested)
			require.Equal(t, tc.fails, err != nil, "%v", err)
			require.Equal(t, tc.retry, result.RequeueAfter > 0)
			require.Empty(t, f.clusters)
		})
	}
}

// TestNameInUseOnAnotherShard: the target does not touch the existing logical cluster, and the Workspace's shard detects
// the conflict. It is retried after the deletion.
func TestNameInUseOnAnotherShard(t *testing.T) {
	f := newPlaced(t)
	r := f.process()
	f.claim(r)
	cluster := logicalcluster.Name(f.ws.Spec.Cluster)
	foreign := &corev1alpha1.LogicalCluster{Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{UID: "foreign"}}}
	f.clusters[cluster] = foreign
	placing, _ := f.target()
	require.Positive(t, f.place(placing).RequeueAfter)
	r.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	_, err := f.reconcile(r)
	require.ErrorContains(t, err, "belongs to another workspace")
	require.Contains(t, conditions.GetMessage(f.ws, tenancyv1alpha1.WorkspaceScheduled), "belongs to another workspace")
	require.Same(t, foreign, f.clusters[cluster])

	delete(f.clusters, cluster)
	f.placed(placing, r)
	require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)

	// Its deletion does not affect the other Workspace.
	f.clusters[cluster] = foreign
	f.delete()
	f.place(placing)
	require.Nil(t, foreign.DeletionTimestamp)
	f.sync(r)
	require.Nil(t, f.ws)
	require.Same(t, foreign, f.clusters[cluster])
}

// TestDeletionDuringCreation: the Workspace is deleted between the target's last read and its create.
func TestDeletionDuringCreation(t *testing.T) {
	for _, kept := range []string{"", "used", "old", "existing"} {
		t.Run(kept, func(t *testing.T) {
			f := newPlaced(t)
			r := f.process()
			f.claim(r)
			cluster, claimed := logicalcluster.Name(f.ws.Spec.Cluster), f.ws
			placing, o := f.target()
			o.before = func() {
				o.before = nil
				f.delete()
				f.sync(r)
				require.Nil(t, f.ws, "its shard has observed that the logical cluster does not exist")
			}
			f.place(placing)
			require.Contains(t, f.clusters, cluster)
			f.clusters[cluster].CreationTimestamp = metav1.Now()
			switch kept {
			case "used":
				f.used = true
			case "old":
				f.clusters[cluster].CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * orphanAge))
			case "existing":
				f.ws = claimed.DeepCopy()
				delete(f.ws.Labels, tenancy.TargetLabel) // hides it from the watch
			}
			before, reported := orphaned(t, placing.orphans), 0
			if kept == "used" || kept == "old" {
				reported = 1
			}
			f.place(placing)
			require.Equal(t, kept != "", f.clusters[cluster].DeletionTimestamp == nil)
			require.Equal(t, before+reported, orphaned(t, placing.orphans))
			if reported > 0 {
				delete(f.clusters, cluster)
				f.place(placing)
				require.Equal(t, before, orphaned(t, placing.orphans))
			}
		})
	}
}

func TestUnreachableTargetIsReported(t *testing.T) {
	f := newPlaced(t)
	f.down = true
	r := f.process()
	f.claim(r)
	r.now = func() time.Time { return time.Now().Add(2 * time.Hour) } // without events
	require.Positive(t, f.sync(r).RequeueAfter)
	require.Equal(t, reasonShardUnreachable, conditions.GetReason(f.ws, tenancyv1alpha1.WorkspaceScheduled))
	require.NotEmpty(t, f.ws.Annotations[tenancy.PlacementAnnotation], "an unreachable target must observe the request when it is reachable")

	f.down = false
	placing, _ := f.target()
	f.placed(placing, r)
	require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)
	f.delete()
	f.down = true
	require.Positive(t, f.sync(r).RequeueAfter)
	require.Equal(t, reasonShardUnreachable, conditions.GetReason(f.ws, tenancyv1alpha1.WorkspaceContentDeleted))
}

// TestLostWorkspaceLabelIsRestored: the target shard must also observe the deletion of Workspaces that lost the label.
func TestLostWorkspaceLabelIsRestored(t *testing.T) {
	f := newPlaced(t)
	r := f.process()
	f.claim(r)
	placing, _ := f.target()
	f.placed(placing, r)
	for _, deleted := range []bool{false, true} {
		f.ws = f.ws.DeepCopy()
		delete(f.ws.Labels, tenancy.TargetLabel)
		if deleted {
			f.delete()
		}
		f.sync(f.process())
		require.NotEmpty(t, f.ws.Labels[tenancy.TargetLabel])
	}
	f.place(placing)
	require.NotNil(t, f.clusters[logicalcluster.Name(f.ws.Spec.Cluster)].DeletionTimestamp)

	// A claimed one only requests it.
	f = newPlaced(t)
	f.claim(f.process())
	f.ws = f.ws.DeepCopy()
	delete(f.ws.Labels, tenancy.TargetLabel)
	delete(f.ws.Annotations, tenancy.PlacementAnnotation)
	claimed := f.ws.Spec.Cluster
	f.claim(f.process())
	require.Equal(t, claimed, f.ws.Spec.Cluster)
	require.NotEmpty(t, f.ws.Labels[tenancy.TargetLabel])
}
