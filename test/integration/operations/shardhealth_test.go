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

// healthTimeout limits waiting for states that require several heartbeats.
const healthTimeout = 3 * time.Minute

// health is a cluster with shards that are killed and restarted.
type health struct{ *kit.Env }

// eventually is Env.Eventually with healthTimeout.
func (h health) eventually(what string, condition func() bool) {
	h.T.Helper()
	require.Eventually(h.T, condition, healthTimeout, 50*time.Millisecond, "timeout, expected: "+what)
}

// shard returns a Shard object.
func (h health) shard(name string) *corev1alpha1.Shard {
	h.T.Helper()
	shard, err := kinds.Shards.In(h.ProxyClient.Cluster(kit.Path("root"))).Get(h.T.Context(), name, metav1.GetOptions{})
	if err != nil { // the shard of root may be stopped
		return &corev1alpha1.Shard{}
	}
	return shard
}

// ready returns status and reason of the condition Ready of a shard.
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
	return harness.Get(h.T, kinds.Workspaces.In(h.ProxyClient.Cluster(kit.Path(in))), name)
}

// untilReady waits until a workspace is Ready, and returns its shard.
func (h health) untilReady(in, name string) string {
	h.T.Helper()
	var ws *tenancyv1alpha1.Workspace
	h.eventually(in+":"+name+" becomes Ready", func() bool {
		ws = h.get(in, name)
		return ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	return ws.Annotations["core.kcp.io/shard"]
}

// untilUnschedulable waits until a workspace reports that it is unscheduled, with a reason.
func (h health) untilUnschedulable(in, name, why string) {
	h.T.Helper()
	var message string
	h.eventually(in+":"+name+" reports the reason", func() bool {
		ws := h.get(in, name)
		scheduled := conditions.Get(ws, tenancyv1alpha1.WorkspaceScheduled)
		if scheduled == nil || scheduled.Status != corev1.ConditionFalse {
			return false
		}
		message = scheduled.Reason + ": " + scheduled.Message
		require.Empty(h.T, ws.Annotations["core.kcp.io/shard"], "the workspace must not be assigned to a shard")
		return strings.Contains(message, why) // another shard's heartbeat may be late
	})
	require.Contains(h.T, message, "Unschedulable: no shard is available: ")
}

// TestShardHealth checks that a killed shard becomes not ready after several heartbeats, and that new workspaces are placed on other
// shards or, if they fit nowhere else, wait for it.
func TestShardHealth(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills processes, and waits until a shard counts as unavailable")
	}
	t.Parallel()
	h := health{kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})}
	for _, shard := range []string{"root", "shard-1"} {
		h.eventually(shard+" is ready", func() bool { return h.ready(shard) == "True" })
	}
	// A parent on the other shard, which also needs the health of shards.
	h.NewWorkspace("root", "parent", "shard-1")
	require.Equal(t, "shard-1", h.untilReady("root", "parent"))
	parent := h.get("root", "parent").Spec.Cluster
	shown, err := exec.CommandContext(t.Context(), harness.Kubectl(t), "--kubeconfig", h.Kubeconfig(), "get", "shards").CombinedOutput()
	out := string(shown)
	require.NoError(t, err, out)
	require.Regexp(t, `(?m)^NAME +READY +WORKSPACES +OBJECTS +STORAGE +REGION +URL +EXTERNAL URL +AGE$`, out)
	require.Regexp(t, `(?m)^shard-1 +True +\d+ +\d+ +\d+Mi +https://`, out)

	h.Component("shard-1").Kill()
	h.eventually("shard-1 is not ready", func() bool { return h.ready("shard-1") == "FalseHeartbeatMissing" })
	require.Equal(t, "True", h.ready("root"))
	h.NewWorkspace("root", "there", "shard-1")
	h.untilUnschedulable("root", "there", "shard-1 is not ready (HeartbeatMissing)")
	for i := range 6 {
		h.NewWorkspace("root", fmt.Sprint("elsewhere-", i), "")
		require.Equal(t, "root", h.untilReady("root", fmt.Sprint("elsewhere-", i)))
	}

	// The state survives a restart of the shard that evaluates it.
	h.Component("root").Restart()
	h.NewWorkspace("root", "still-elsewhere", "")
	require.Equal(t, "root", h.untilReady("root", "still-elsewhere"))

	h.Component("shard-1").Start()
	require.Equal(t, "shard-1", h.untilReady("root", "there"))
	require.Equal(t, "True", h.ready("shard-1"))

	// shard-1 uses replicas of the state, also while the shard of root is stopped.
	h.NewWorkspace("root:parent", "child", "shard-1")
	require.Equal(t, "shard-1", h.untilReady("root:parent", "child"))
	h.Component("root").Kill()
	local := kinds.Workspaces.In(h.ShardClients["shard-1"].Cluster(kit.Path(parent)))
	harness.Create(t, local, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "alone"}, Spec: tenancyv1alpha1.WorkspaceSpec{
		Location: &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": "shard-1"}}},
	}})
	h.eventually("a workspace becomes Ready without the shard of root", func() bool {
		ws, err := local.Get(t.Context(), "alone", metav1.GetOptions{})
		return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	h.Component("root").Start()
}
