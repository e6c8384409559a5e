package operations

import (
	"path/filepath"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	targetLabel         = "internal.shardplane.io/target"
	ownerShardLabel     = "internal.shardplane.io/owner-shard"
	placementAnnotation = "internal.tenancy.kcp.io/placement"
)

// placed creates Workspaces in root with logical clusters on shard-1. The test sends requests to the shards directly.
type placed struct {
	*kit.Env
	workspaces *client.Client[*tenancyv1alpha1.Workspace, *tenancyv1alpha1.WorkspaceList]
}

func startPlaced(t *testing.T) placed {
	t.Helper()
	e := kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2, DevTokens: true})
	return placed{e, kinds.Workspaces.In(e.ShardClients["root"].Cluster(kit.Path("root")))}
}

func (p placed) create(name string) {
	p.T.Helper()
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": "shard-1"}}}
	harness.Create(p.T, p.workspaces, ws)
}

func (p placed) until(what, name string, holds func(ws *tenancyv1alpha1.Workspace) bool) (ws *tenancyv1alpha1.Workspace) {
	p.T.Helper()
	p.Eventually(what, func() bool {
		var err error
		ws, err = p.workspaces.Get(p.T.Context(), name, metav1.GetOptions{})
		return err == nil && holds(ws)
	})
	return ws
}

func (p placed) ready(name string) *tenancyv1alpha1.Workspace {
	p.T.Helper()
	return p.until(name+" becomes Ready", name, func(ws *tenancyv1alpha1.Workspace) bool {
		return ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
}

func (p placed) delete(name string) {
	p.T.Helper()
	require.NoError(p.T, p.workspaces.Delete(p.T.Context(), name, metav1.DeleteOptions{}))
}

// untilDeleted waits until a Workspace does not exist. Its logical cluster must have been deleted before.
func (p placed) untilDeleted(name, cluster string) {
	p.T.Helper()
	p.Eventually(name+" is deleted", func() bool {
		_, err := p.workspaces.Get(p.T.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if cluster != "" {
		_, err := p.at(cluster)
		require.True(p.T, apierrors.IsNotFound(err), "%v", err)
	}
}

// at returns a LogicalCluster on shard-1.
func (p placed) at(cluster string) (*corev1alpha1.LogicalCluster, error) {
	return kinds.LogicalClusters.In(p.ShardClients["shard-1"].Cluster(kit.Path(cluster))).Get(p.T.Context(), "cluster", metav1.GetOptions{})
}

// TestPlacementInOutages checks that logical clusters on another shard are created and deleted while servers are unavailable.
func TestPlacementInOutages(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops processes")
	}
	t.Parallel()
	p := startPlaced(t)
	p.create("a")
	a := p.ready("a")
	require.Equal(t, "shard-1", a.Labels[targetLabel])
	require.NotContains(t, a.Annotations, placementAnnotation)
	lc, err := p.at(a.Spec.Cluster)
	require.NoError(t, err)
	require.Equal(t, a.UID, lc.Spec.Owner.UID)

	// Without other servers, shard-1 can only start with a snapshot of its replicas.
	for !kit.Exists(filepath.Join(p.Dir, ".kcp-1", "data", "replicas")) {
		p.Component("shard-1").Restart()
	}
	p.Component("cache-server").Stop()
	p.create("b")
	b := p.ready("b")
	p.Component("shard-1").Restart()
	p.create("c")
	p.ready("c")
	p.delete("a")
	p.untilDeleted("a", a.Spec.Cluster)

	// The target shard is stopped.
	p.Component("shard-1").Stop()
	p.create("d")
	waits := p.until("the condition reports the reason", "d", func(ws *tenancyv1alpha1.Workspace) bool {
		return conditions.GetReason(ws, tenancyv1alpha1.WorkspaceScheduled) == "ShardUnreachable"
	})
	p.create("e")
	e := p.until("the placement is requested", "e", func(ws *tenancyv1alpha1.Workspace) bool {
		return ws.Annotations[placementAnnotation] != ""
	})
	p.delete("b")
	p.until("the condition reports the reason", "b", func(ws *tenancyv1alpha1.Workspace) bool {
		return conditions.GetReason(ws, tenancyv1alpha1.WorkspaceContentDeleted) == "ShardUnreachable"
	})
	p.delete("e")
	p.Component("shard-1").Start()
	require.Equal(t, waits.Spec.Cluster, p.ready("d").Spec.Cluster)
	p.untilDeleted("b", b.Spec.Cluster)
	p.untilDeleted("e", e.Spec.Cluster)

	// A logical cluster is removed if its Workspace was deleted.
	late := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: "cluster", Labels: map[string]string{ownerShardLabel: "root"}, Finalizers: []string{"core.kcp.io/logicalcluster-deletion"},
	}}
	late.Spec.Owner = &corev1alpha1.LogicalClusterOwner{
		APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Resource: "workspaces", Cluster: "root", Name: "b", UID: b.UID,
	}
	harness.Create(t, kinds.LogicalClusters.In(p.ShardClients["shard-1"].Cluster(kit.Path("late"))), late)
	p.Eventually("the logical cluster is deleted", func() bool {
		_, err := p.at("late")
		return apierrors.IsNotFound(err)
	})
}
