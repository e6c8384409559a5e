package operations

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// healthTimeout is how long a test waits for what takes several heartbeats.
const healthTimeout = 3 * time.Minute

// health is a cluster whose shards come and go.
type health struct{ *kit.Env }

// eventually is env.eventually for what takes several heartbeats.
func (h health) eventually(what string, condition func() bool) {
	h.T.Helper()
	require.Eventually(h.T, condition, healthTimeout, 50*time.Millisecond, what)
}

// shard returns a Shard object.
func (h health) shard(name string) *corev1alpha1.Shard {
	h.T.Helper()
	shard, err := kinds.Shards.In(h.ProxyClient.Cluster(kit.Path("root"))).Get(h.T.Context(), name, metav1.GetOptions{})
	if err != nil { // root's shard may be away
		return &corev1alpha1.Shard{}
	}
	return shard
}

// ready is what the condition Ready of a shard says, with its reason.
func (h health) ready(name string) string {
	h.T.Helper()
	ready := conditions.Get(h.shard(name), "Ready")
	if ready == nil {
		return ""
	}
	return string(ready.Status) + ready.Reason
}

func (h health) get(in, name string) *tenancyv1alpha1.Workspace {
	h.T.Helper()
	ws, err := kinds.Workspaces.In(h.ProxyClient.Cluster(kit.Path(in))).Get(h.T.Context(), name, metav1.GetOptions{})
	require.NoError(h.T, err)
	return ws
}

// lands waits until a workspace is Ready, and returns its shard.
func (h health) lands(in, name string) string {
	h.T.Helper()
	var ws *tenancyv1alpha1.Workspace
	h.eventually(in+":"+name+" becomes Ready", func() bool {
		ws = h.get(in, name)
		return ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	return ws.Annotations["core.kcp.io/shard"]
}

// waits waits until a workspace says that it waits, and why.
func (h health) waits(in, name, why string) {
	h.T.Helper()
	var says string
	h.eventually(in+":"+name+" says that it waits", func() bool {
		ws := h.get(in, name)
		scheduled := conditions.Get(ws, tenancyv1alpha1.WorkspaceScheduled)
		if scheduled == nil || scheduled.Status != corev1.ConditionFalse {
			return false
		}
		says = scheduled.Reason + ": " + scheduled.Message
		require.Empty(h.T, ws.Annotations["core.kcp.io/shard"], "nothing is claimed")
		return strings.Contains(says, why) // a heartbeat may be late meanwhile
	})
	require.Contains(h.T, says, "Unschedulable: no shard is available: ")
}

// TestShardHealth: a shard that dies is not ready after some heartbeats; workspaces go to
// others meanwhile, and one that fits nowhere else says so, until the shard is back.
func TestShardHealth(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills processes, and waits until a shard counts as unavailable")
	}
	t.Parallel()
	h := health{kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})}
	for _, shard := range []string{"root", "shard-1"} {
		h.eventually(shard+" is ready", func() bool { return h.ready(shard) == "True" })
	}
	// Of a parent on the other shard, so that health is known there too.
	h.NewWorkspace("root", "parent", "shard-1")
	require.Equal(t, "shard-1", h.lands("root", "parent"))
	parent := h.get("root", "parent").Spec.Cluster
	shown, err := exec.CommandContext(t.Context(), harness.Kubectl(t), "--kubeconfig", h.Kubeconfig(), "get", "shards").CombinedOutput()
	out := string(shown)
	require.NoError(t, err, out)
	require.Regexp(t, `(?m)^NAME +READY +WORKSPACES +OBJECTS +STORAGE +REGION +URL +EXTERNAL URL +AGE$`, out)
	require.Regexp(t, `(?m)^shard-1 +True +\d+ +\d+ +\d+Mi +https://`, out)

	h.Component("shard-1").Kill()
	h.eventually("it is not ready", func() bool { return h.ready("shard-1") == "FalseHeartbeatMissing" })
	require.Equal(t, "True", h.ready("root"))
	h.NewWorkspace("root", "there", "shard-1")
	h.waits("root", "there", "shard-1 is not ready (HeartbeatMissing)")
	for i := range 6 {
		h.NewWorkspace("root", fmt.Sprint("elsewhere-", i), "")
		require.Equal(t, "root", h.lands("root", fmt.Sprint("elsewhere-", i)))
	}

	// Who judges next still knows.
	h.Component("root").Restart()
	h.NewWorkspace("root", "still-elsewhere", "")
	require.Equal(t, "root", h.lands("root", "still-elsewhere"))

	h.Component("shard-1").Start()
	require.Equal(t, "shard-1", h.lands("root", "there"))
	require.Equal(t, "True", h.ready("shard-1"))

	// It is told by replicas, and goes on with what it knew while root's shard is away.
	h.NewWorkspace("root:parent", "child", "shard-1")
	require.Equal(t, "shard-1", h.lands("root:parent", "child"))
	h.Component("root").Kill()
	local := kinds.Workspaces.In(h.ShardClients["shard-1"].Cluster(kit.Path(parent)))
	_, err = local.Create(t.Context(), &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "alone"}, Spec: tenancyv1alpha1.WorkspaceSpec{
		Location: &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": "shard-1"}}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	h.eventually("a workspace becomes Ready without root's shard", func() bool {
		ws, err := local.Get(t.Context(), "alone", metav1.GetOptions{})
		return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	h.Component("root").Start()
}
