package workspace

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

func shard(name string, changes ...func(*corev1alpha1.Shard)) *corev1alpha1.Shard {
	s := &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: "https://" + name + ":6444", ExternalURL: "https://proxy:6443/"},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func unschedulable(s *corev1alpha1.Shard) {
	s.Annotations = map[string]string{tenancy.UnschedulableAnnotation: ""}
}

func beingDeleted(s *corev1alpha1.Shard) { s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

func withoutURL(s *corev1alpha1.Shard) { s.Spec = corev1alpha1.ShardSpec{} }

func unready(s *corev1alpha1.Shard) {
	conditions.MarkFalse(s, conditionsv1alpha1.ReadyCondition, shardload.ReasonHeartbeatMissing, conditionsv1alpha1.ConditionSeverityError, "")
}

func isReady(s *corev1alpha1.Shard) { conditions.MarkTrue(s, conditionsv1alpha1.ReadyCondition) }

func withLoad(load shardload.Load) func(*corev1alpha1.Shard) { return load.SetOnShard }

func workspaces(used, limit int64) func(*corev1alpha1.Shard) {
	return withLoad(shardload.Load{Workspaces: shardload.Amount{Used: used, Limit: limit}})
}

func nothing(*corev1alpha1.Shard) shardObservation { return shardObservation{} }

func selecting(selector *metav1.LabelSelector) *tenancyv1alpha1.Workspace {
	ws := &tenancyv1alpha1.Workspace{}
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: selector}
	return ws
}

func TestChooseShard(t *testing.T) {
	anywhere := &tenancyv1alpha1.Workspace{}
	observed := func(shard *corev1alpha1.Shard) (of shardObservation) {
		of.silent = shard.Name == "silent"
		if shard.Name == "claimed twice" {
			of.claims = 2
		}
		return of
	}
	for name, tc := range map[string]struct {
		ws            *tenancyv1alpha1.Workspace
		shards        []*corev1alpha1.Shard
		want, problem string
		retry         time.Duration
	}{
		"one shard":                        {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a")}, want: "a"},
		"selected shard":                   {ws: selecting(&metav1.LabelSelector{MatchLabels: map[string]string{"name": "b"}}), shards: []*corev1alpha1.Shard{shard("a"), shard("b"), shard("c")}, want: "b"},
		"empty selector":                   {ws: selecting(&metav1.LabelSelector{}), shards: []*corev1alpha1.Shard{shard("a")}, want: "a"},
		"schedulable shard":                {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", unschedulable), shard("b")}, want: "b"},
		"shard that is not being deleted":  {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", beingDeleted), shard("b")}, want: "b"},
		"shard with a URL":                 {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", withoutURL), shard("b")}, want: "b"},
		"no shards":                        {ws: anywhere, problem: "no shard is registered"},
		"no matching shard":                {ws: selecting(&metav1.LabelSelector{MatchLabels: map[string]string{"name": "x"}}), shards: []*corev1alpha1.Shard{shard("b"), shard("a")}, problem: "no shard is available: none matches spec.location.selector, use labels of an existing shard, or remove it"},
		"all unschedulable":                {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", unschedulable)}, problem: "no shard is available: each is unschedulable"},
		"ready shard":                      {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", unready), shard("b", isReady)}, want: "b"},
		"shard without readiness":          {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", unready), shard("b")}, want: "b"},
		"shard with capacity":              {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", workspaces(3, 3)), shard("b", workspaces(9, 0))}, want: "b"},
		"shard that is not full by claims": {ws: anywhere, shards: []*corev1alpha1.Shard{shard("claimed twice", workspaces(1, 3)), shard("b", workspaces(9, 0))}, want: "b"},
		"no ready shard":                   {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", unready)}, problem: "no shard is available: each is not ready (HeartbeatMissing)"},
		"all full": {
			ws: anywhere,
			shards: []*corev1alpha1.Shard{
				shard("b", withLoad(shardload.Load{Objects: shardload.Amount{Used: 11, Limit: 10}})),
				shard("c", withLoad(shardload.Load{Storage: shardload.Amount{Used: 3 << 20, Limit: 3 << 20}})), shard("a", workspaces(3, 3)),
			},
			problem: "no shard is available: each has reached --max-objects, or has reached --max-storage, or has reached --max-workspaces",
		},
		"selected by name": {
			ws:      selecting(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "In", Values: []string{"b", "c", "other"}}}}),
			shards:  []*corev1alpha1.Shard{shard("c", unready), shard("a"), shard("b", unschedulable)},
			problem: "no shard is available: b is unschedulable, c is not ready (HeartbeatMissing)",
		},
		"one of several selected by name": {
			ws:      selecting(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Exists"}, {Key: "region", Operator: "NotIn", Values: []string{"b"}}}}),
			shards:  []*corev1alpha1.Shard{shard("c", unready), shard("d", unready), shard("b", unschedulable)},
			problem: "no shard is available: b is unschedulable, each other one is not ready (HeartbeatMissing)",
		},
		"full by claims":          {ws: anywhere, shards: []*corev1alpha1.Shard{shard("claimed twice", workspaces(1, 3))}, problem: "each has reached --max-workspaces", retry: claimTTL},
		"not a nearly full shard": {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", workspaces(90, 100)), shard("b", workspaces(89, 100))}, want: "b"},
		"all nearly full":         {ws: anywhere, shards: []*corev1alpha1.Shard{shard("a", workspaces(99, 100)), shard("b", workspaces(100, 100))}, want: "a"},
		"not a silent shard":      {ws: anywhere, shards: []*corev1alpha1.Shard{shard("silent"), shard("b")}, want: "b"},
		"only a silent shard":     {ws: anywhere, shards: []*corev1alpha1.Shard{shard("silent"), shard("b", unready)}, want: "silent"},
		"large key":               {ws: selecting(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: strings.Repeat("a", 318), Operator: "Exists"}}}), shards: []*corev1alpha1.Shard{shard("a")}, problem: "a key of more than 317 bytes"},
		"invalid selector": {
			ws: selecting(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}), shards: []*corev1alpha1.Shard{shard("a")},
			problem: "spec.location.selector is invalid",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, p := chooseShard(tc.ws, "cluster", tc.shards, observed)
			if tc.problem != "" {
				require.NotNil(t, p)
				require.Equal(t, tenancyv1alpha1.WorkspaceReasonUnschedulable, p.reason)
				require.Contains(t, p.message, tc.problem)
				for _, shard := range tc.shards {
					if tc.ws.Spec.Location == nil {
						require.NotContains(t, p.message, shard.Name+" ", "the message contains the name of a shard")
					}
				}
				require.Equal(t, tc.retry, p.retry)
				return
			}
			require.Nil(t, p)
			require.Equal(t, tc.want, got.Name)
		})
	}
}

func TestChooseShardSpreadsAndRepeats(t *testing.T) {
	shards := []*corev1alpha1.Shard{shard("a"), shard("b"), shard("c")}
	counts := map[string]int{}
	const n = 3000
	for i := range n {
		cluster := logicalcluster.Name(fmt.Sprintf("cluster-%d", i))
		got, p := chooseShard(&tenancyv1alpha1.Workspace{}, cluster, shards, nothing)
		require.Nil(t, p)
		retry, _ := chooseShard(&tenancyv1alpha1.Workspace{}, cluster, []*corev1alpha1.Shard{shards[2], shards[1], shards[0]}, nothing)
		require.Equal(t, got.Name, retry.Name, "the order of shards must not matter")
		counts[got.Name]++
	}
	for name, count := range counts {
		require.InDelta(t, n/3, count, n/15, "shard %s", name)
	}
}

func TestNames(t *testing.T) {
	seen := map[logicalcluster.Name]bool{}
	for range 1000 {
		name := newClusterName()
		require.True(t, name.IsValid(), name)
		require.Len(t, name.String(), 16)
		require.False(t, seen[name])
		seen[name] = true
	}
	require.Regexp(t, `^[0-9a-z]{8}$`, shardHash("root"))
	require.NotEqual(t, shardHash("root"), shardHash("shard-1"))
}
