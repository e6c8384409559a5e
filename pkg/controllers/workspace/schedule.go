package workspace

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Reasons of the condition WorkspaceScheduled beside those of the SDK.
const (
	reasonTypeInvalid      = "WorkspaceTypeInvalid"
	reasonShardUnreachable = "ShardUnreachable"
)

// problem is why a Workspace cannot be scheduled for now, as its condition
// tells it.
type problem struct {
	reason, message string
}

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// chooseShard returns the shard for a new logical cluster: one of those that
// match the Workspace's selector and take new ones, spread evenly by the random
// name of the logical cluster.
func chooseShard(ws *tenancyv1alpha1.Workspace, cluster logicalcluster.Name, shards []*corev1alpha1.Shard) (*corev1alpha1.Shard, *problem) {
	selector := labels.Everything()
	if ws.Spec.Location != nil && ws.Spec.Location.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(ws.Spec.Location.Selector); err != nil {
			return nil, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "spec.location.selector is invalid: %v", err)
		}
	}
	var chosen *corev1alpha1.Shard
	var best uint64
	var refused []string
	for _, shard := range shards {
		if why := unfit(shard, selector); why != "" {
			refused = append(refused, fmt.Sprintf("%s %s", shard.Name, why))
			continue
		}
		if rank := rankOf(cluster, shard.Name); chosen == nil || rank > best {
			chosen, best = shard, rank
		}
	}
	if chosen != nil {
		return chosen, nil
	}
	if len(refused) == 0 {
		return nil, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "no shard is registered")
	}
	slices.Sort(refused)
	return nil, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "no shard is available: %s", strings.Join(refused, ", "))
}

// unfit tells why a shard takes no new logical cluster; it is empty if it does.
func unfit(shard *corev1alpha1.Shard, selector labels.Selector) string {
	_, unschedulable := shard.Annotations[tenancy.UnschedulableAnnotation]
	switch {
	case !selector.Matches(labels.Set(shard.Labels)):
		return "does not match spec.location.selector"
	case unschedulable:
		return "is unschedulable"
	case shard.DeletionTimestamp != nil:
		return "is being deleted"
	case shard.Spec.BaseURL == "" || externalURL(shard) == "":
		return "has no URL"
	default:
		return ""
	}
}

// rankOf orders shards for a logical cluster. The highest one wins: with random
// names every shard wins equally often, and another shard that comes or goes
// does not change the order of the others.
func rankOf(cluster logicalcluster.Name, shard string) uint64 {
	sum := sha256.Sum256([]byte(cluster.String() + "/" + shard))
	return binary.BigEndian.Uint64(sum[:])
}

// externalURL returns the address that users know of a shard.
func externalURL(shard *corev1alpha1.Shard) string {
	if shard.Spec.ExternalURL != "" {
		return strings.TrimSuffix(shard.Spec.ExternalURL, "/")
	}
	return strings.TrimSuffix(shard.Spec.BaseURL, "/")
}
