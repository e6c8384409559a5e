package shardload

import (
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var some = Load{
	Workspaces: Amount{Used: 3, Limit: 1500}, Objects: Amount{Used: 12345}, Storage: Amount{Used: 5 << 20, Limit: 8 << 30},
}

// TestOnShard: a Shard contains the load in readable form.
func TestOnShard(t *testing.T) {
	shard := &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"others": "stay"}}}
	_, known := OfShard(shard)
	require.False(t, known)
	some.SetOnShard(shard)
	got, known := OfShard(shard)
	require.True(t, known)
	require.Equal(t, some, got)
	require.Equal(t, map[string]string{"others": "stay", WorkspacesAnnotation: "3", ObjectsAnnotation: "12345", StorageAnnotation: "5Mi"}, shard.Annotations)
	require.Equal(t, "1500", shard.Status.Capacity.Name("workspaces", "").String())
	require.Equal(t, "8Gi", shard.Status.Capacity.Storage().String())
	require.Equal(t, []string{"3/1500 workspaces", "12345 objects", "5Mi/8Gi storage"}, got.Descriptions())

	Load{Storage: Amount{Used: 1}}.SetOnShard(shard)
	got, _ = OfShard(shard)
	require.Equal(t, Load{Storage: Amount{Used: 1 << 20}}, got, "removed limits must be cleared, and storage must be rounded up")
	conditions.MarkTrue(shard, conditionsv1alpha1.ReadyCondition)
	ClearOnShard(shard)
	require.Equal(t, &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"others": "stay"}}, Status: corev1alpha1.ShardStatus{Conditions: conditionsv1alpha1.Conditions{}}}, shard)
	shard.Annotations = map[string]string{WorkspacesAnnotation: "many", ObjectsAnnotation: "1", StorageAnnotation: "1"}
	_, known = OfShard(shard)
	require.False(t, known)
}

func TestOnLease(t *testing.T) {
	lease := &coordinationv1.Lease{}
	_, known := OfLease(lease)
	require.False(t, known)
	full := some
	full.Full = true
	require.NoError(t, SetOnLease(lease, &full))
	got, known := OfLease(lease)
	require.True(t, known)
	require.Equal(t, full, got)
	require.NoError(t, SetOnLease(lease, nil))
	_, known = OfLease(lease)
	require.False(t, known)
}

func TestFull(t *testing.T) {
	for _, tc := range []struct {
		load    Load
		fullOf  string
		nearly  bool
		percent int64
	}{
		{load: Load{Objects: Amount{Used: 1 << 40}}},
		{load: Load{Workspaces: Amount{Used: 89, Limit: 100}}, percent: 89},
		{load: Load{Workspaces: Amount{Used: 90, Limit: 100}, Objects: Amount{Used: 1, Limit: 2}}, nearly: true, percent: 90},
		{load: Load{Objects: Amount{Used: 7, Limit: 7}}, fullOf: "objects", nearly: true, percent: 100},
		{load: Load{Storage: Amount{Used: 3, Limit: 2}}, fullOf: "storage", nearly: true, percent: 150},
		{load: Load{Workspaces: Amount{Used: 1, Limit: 3}}.With(2), fullOf: "workspaces", nearly: true, percent: 100},
	} {
		require.Equal(t, tc.fullOf, tc.load.FullOf(), "%+v", tc.load)
		require.Equal(t, tc.nearly, tc.load.NearlyFull(), "%+v", tc.load)
		require.Equal(t, tc.percent, tc.load.Percent(), "%+v", tc.load)
	}
}

func TestUnready(t *testing.T) {
	shard := &corev1alpha1.Shard{}
	require.Empty(t, Unready(shard), "a shard without conditions must not be unready")
	conditions.MarkUnknown(shard, conditionsv1alpha1.ReadyCondition, "Unheard", "")
	require.Empty(t, Unready(shard))
	conditions.MarkFalse(shard, conditionsv1alpha1.ReadyCondition, ReasonStorageFull, conditionsv1alpha1.ConditionSeverityError, "")
	require.Equal(t, ReasonStorageFull, Unready(shard))
	conditions.MarkTrue(shard, conditionsv1alpha1.ReadyCondition)
	require.Empty(t, Unready(shard))
}
