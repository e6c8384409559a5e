package shardhealth

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// setReady sets the condition Ready of a shard by what is known of it. Of an unknown one it
// stays as it is.
func setReady(shard *corev1alpha1.Shard, heard verdict, load shardload.Load) {
	switch {
	case heard == unknown:
	case heard == missing:
		conditions.MarkFalse(shard, conditionsv1alpha1.ReadyCondition, shardload.ReasonHeartbeatMissing, conditionsv1alpha1.ConditionSeverityError,
			"nothing is heard of the shard for %s: see whether it runs, and reaches root's shard. It takes no new workspaces until it is heard of", shardload.Missed*shardload.Interval)
	case load.Full:
		conditions.MarkFalse(shard, conditionsv1alpha1.ReadyCondition, shardload.ReasonStorageFull, conditionsv1alpha1.ConditionSeverityWarning,
			"its etcd is nearly full: have tenants delete, compact and defragment it, or raise its quota. It takes no new workspaces until there is room")
	default:
		conditions.MarkTrue(shard, conditionsv1alpha1.ReadyCondition)
	}
}

// setCachesReady sets the condition CachesReady of a shard by what the shard has reported. alone is
// set if there is no other shard, so that no cache is needed.
func setCachesReady(shard *corev1alpha1.Shard, heard verdict, load shardload.Load, alone bool) {
	var wrong, reasons []string
	for _, name := range slices.Sorted(maps.Keys(load.Caches)) {
		if reason := load.Caches[name]; reason != "" {
			wrong, reasons = append(wrong, fmt.Sprintf("%s (%s)", name, reason)), append(reasons, reason)
		}
	}
	switch {
	case heard != alive || load.Caches == nil:
	case len(load.Caches) == 0 && alone:
		conditions.Delete(shard, shardload.CachesReady)
	case len(load.Caches) == 0:
		conditions.MarkFalse(shard, shardload.CachesReady, shardload.ReasonNoCache, conditionsv1alpha1.ConditionSeverityError,
			"the shard has no --cache-kubeconfig: exports, workspace types and permissions of other shards are unknown there, and those of this shard to others")
	case len(wrong) > 0:
		conditions.MarkFalse(shard, shardload.CachesReady, reasons[0], conditionsv1alpha1.ConditionSeverityError,
			"cache servers that the shard cannot use: %s. The log of the shard contains the reason and what to do", strings.Join(wrong, ", "))
	default:
		conditions.MarkTrue(shard, shardload.CachesReady)
	}
}

// How much objects and storage change before they are worth a write: a part, but not less
// than these.
const (
	part       = 100
	fewObjects = 100
	fewBytes   = 16 << 20
)

// differ reports whether a load has changed so much that it is worth a write.
func differ(told, now shardload.Load) bool {
	moved := func(a, b shardload.Amount, few int64) bool {
		return a.Limit != b.Limit || max(a.Used-b.Used, b.Used-a.Used) > max(few, a.Used/part)
	}
	return moved(told.Workspaces, now.Workspaces, 0) || moved(told.Objects, now.Objects, fewObjects) || moved(told.Storage, now.Storage, fewBytes)
}
