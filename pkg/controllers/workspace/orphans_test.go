package workspace

import (
	"context"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/crash"
)

// TestIsStart: a logical cluster with initial objects is considered empty.
func TestIsStart(t *testing.T) {
	page := func(names ...string) *metav1.PartialObjectMetadataList {
		list := &metav1.PartialObjectMetadataList{}
		for _, name := range names {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return list
	}
	namespaces, secrets := kinds.Namespaces.GroupResource(), kinds.Secrets.GroupResource()
	require.True(t, isInitial(namespaces, page("default", "kube-system")))
	require.True(t, isInitial(kinds.ConfigMaps.GroupResource(), page("kube-root-ca.crt", "kube-root-ca.crt")))
	require.True(t, isInitial(secrets, page()))
	require.False(t, isInitial(namespaces, page("default", "own")))
	require.False(t, isInitial(secrets, page("default")))
	more := page("default", "kube-system")
	more.Continue = "more"
	require.False(t, isInitial(namespaces, more))
}

// TestLateCreate: a logical cluster that is created after the deletion of its Workspace is deleted,
// unless it may contain data.
func TestLateCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		change       func(f *fake, r *workspaceReconciler, late *corev1alpha1.LogicalCluster)
		stays, fails bool
		// reported is set if an administrator must act.
		reported bool
	}{
		"unused": {},
		"another Workspace has the name": {change: func(f *fake, _ *workspaceReconciler, _ *corev1alpha1.LogicalCluster) {
			f.ws = newWorkspace("w")
			f.ws.UID = "another"
		}},
		"used": {stays: true, reported: true, change: func(f *fake, _ *workspaceReconciler, _ *corev1alpha1.LogicalCluster) { f.used = true }},
		"old": {stays: true, reported: true, change: func(_ *fake, _ *workspaceReconciler, late *corev1alpha1.LogicalCluster) {
			late.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * orphanAge))
		}},
		"Workspace of another shard": {stays: true, change: func(_ *fake, _ *workspaceReconciler, late *corev1alpha1.LogicalCluster) {
			late.Labels[tenancy.OwnerShardLabel] = "elsewhere"
		}},
		"Workspace missing only in the informer": {stays: true, change: func(_ *fake, r *workspaceReconciler, _ *corev1alpha1.LogicalCluster) {
			r.exists = func(context.Context, client.Key, types.UID) (bool, error) { return true, nil }
		}},
		"unreadable Workspace": {stays: true, fails: true, change: func(_ *fake, r *workspaceReconciler, _ *corev1alpha1.LogicalCluster) {
			r.exists = func(context.Context, client.Key, types.UID) (bool, error) { return false, errCannot }
		}},
		"unreachable shard": {stays: true, change: func(f *fake, _ *workspaceReconciler, _ *corev1alpha1.LogicalCluster) { f.down = true }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.At = 2 // the claim, and a crash in the create
			r := f.process()
			_, err := f.reconcile(r)
			require.ErrorIs(t, err, crash.Err)
			cluster := logicalcluster.Name(f.ws.Spec.Cluster)
			parent, err := r.parent("parent")
			require.NoError(t, err)
			late, p := logicalClusterFor(f.ws, facts{parent: parent, types: r.types}, "here")
			require.Nil(t, p)
			late.UID, late.CreationTimestamp = "late", metav1.NewTime(r.now())

			f.At = 0
			r = f.process()
			f.delete()
			f.sync(r)
			require.Nil(t, f.ws, "the Workspace must be deleted")
			f.clusters[cluster] = late
			if tc.change != nil {
				tc.change(f, r, late)
			}
			before := orphaned(t, r.orphans)
			result, err := f.reconcile(r)
			require.Equal(t, tc.fails, err != nil, "%v", err)
			require.True(t, !f.down || result.RequeueAfter > 0, "an unreachable shard must be retried")
			require.Equal(t, tc.stays, f.clusters[cluster].DeletionTimestamp == nil)
			if !tc.reported {
				require.Equal(t, before, orphaned(t, r.orphans))
				return
			}
			require.Equal(t, before+1, orphaned(t, r.orphans))
			f.sync(r)
			require.Equal(t, before+1, orphaned(t, r.orphans), "an orphan must be counted once")
			delete(f.clusters, cluster)
			f.sync(r)
			require.Equal(t, before, orphaned(t, r.orphans), "a deleted orphan must not be counted")
		})
	}
}

func orphaned(t *testing.T, o *orphans) int {
	t.Helper()
	n, err := testutil.GetGaugeMetricValue(o.gauge)
	require.NoError(t, err)
	return int(n)
}
