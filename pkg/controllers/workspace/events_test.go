package workspace

import (
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/reconcile"
)

func TestNotices(t *testing.T) {
	now := time.Unix(1000, 0)
	condition := func(age time.Duration, status corev1.ConditionStatus, severity conditionsv1alpha1.ConditionSeverity) conditionsv1alpha1.Condition {
		return conditionsv1alpha1.Condition{Type: "T", Status: status, Severity: severity, Reason: "Why", Message: "because", LastTransitionTime: metav1.NewTime(now.Add(-age))}
	}
	for name, tc := range map[string]struct {
		phase      corev1alpha1.LogicalClusterPhaseType
		age, next  time.Duration
		cluster    string
		conditions []conditionsv1alpha1.Condition
		want       []notice
	}{
		"ready":         {phase: "Ready", age: time.Hour},
		"just created":  {age: time.Second, next: 4 * time.Second},
		"no conditions": {phase: "Scheduling", age: time.Minute, want: []notice{{"Normal", "WaitingForLogicalCluster", "the workspace has no logical cluster yet"}}},
		"claimed":       {phase: "Initializing", age: time.Minute, cluster: "c", want: []notice{{"Normal", "WaitingForLogicalCluster", `logical cluster c on shard "a" is not ready yet`}}},
		"failed condition": {phase: "Scheduling", age: time.Minute, want: []notice{{"Warning", "Why", "because"}},
			conditions: []conditionsv1alpha1.Condition{condition(5*time.Second, "False", "Error"), condition(time.Minute, "True", "")}},
		"recently failed condition": {phase: "Scheduling", age: time.Minute, next: 2 * time.Second,
			conditions: []conditionsv1alpha1.Condition{condition(3*time.Second, "False", "Error")}},
		"informational condition": {phase: "Initializing", age: time.Minute, want: []notice{{"Normal", "Why", "because"}}, next: time.Second,
			conditions: []conditionsv1alpha1.Condition{condition(4*time.Second, "False", "Info"), condition(time.Minute, "False", "Info")}},
		"failed deletion": {phase: "Deleting", age: time.Minute, want: []notice{{"Warning", "Why", "because"}},
			conditions: []conditionsv1alpha1.Condition{condition(time.Minute, "False", "Warning")}},
	} {
		t.Run(name, func(t *testing.T) {
			ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{
				Name: "w", CreationTimestamp: metav1.NewTime(now.Add(-tc.age)), Annotations: map[string]string{shardAnnotation: "a"},
			}}
			ws.Spec.Cluster, ws.Status.Phase, ws.Status.Conditions = tc.cluster, tc.phase, tc.conditions
			all, next := notices(ws, now)
			require.Equal(t, tc.want, all)
			require.Equal(t, tc.next, next)
		})
	}
}

// TestNoticesAreReportedOnce: each message is one Event for each Workspace, and later messages are scheduled.
func TestNoticesAreReportedOnce(t *testing.T) {
	f := newFake(t)
	r := f.process()
	r.shards = func() []*corev1alpha1.Shard { return nil }
	for range 3 {
		f.sync(r)
	}
	require.Equal(t, []notice{{"Warning", "Unschedulable", "no shard is registered"}}, f.events)

	other := f.ws.DeepCopy()
	other.UID = "another"
	f.ws = other
	f.sync(r)
	require.Len(t, f.events, 2)

	r.now = time.Now
	f.ws = f.ws.DeepCopy()
	f.ws.Status.Conditions[0].LastTransitionTime, f.ws.UID = metav1.Now(), "a third"
	result := f.sync(r)
	require.Len(t, f.events, 2)
	require.Positive(t, result.RequeueAfter)
	require.LessOrEqual(t, result.RequeueAfter, noticeDelay)

	// The Workspace is ready.
	require.Empty(t, r.reported.fresh(key, "a third", nil))
	require.Nil(t, r.reported.get(key))
	require.Equal(t, reconcile.Result{RequeueAfter: time.Second}, r.report(t.Context(), ready(f.ws), reconcile.Result{RequeueAfter: time.Second}))
}

func ready(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	ws.Status = tenancyv1alpha1.WorkspaceStatus{Phase: corev1alpha1.LogicalClusterPhaseReady}
	return ws
}
