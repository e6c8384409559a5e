package workspace

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
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
	// shards are those that do not take it, and why, for administrators.
	shards map[string]string
	// again is when to look again although nothing may have changed, if positive.
	again time.Duration
}

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// chooseShard returns the shard for a new logical cluster: one of those that match the
// Workspace's selector and take new ones. known tells what this process knows of a shard
// beside its object.
func chooseShard(ws *tenancyv1alpha1.Workspace, cluster logicalcluster.Name, shards []*corev1alpha1.Shard, known func(*corev1alpha1.Shard) experience) (*corev1alpha1.Shard, *problem) {
	selector := labels.Everything()
	if ws.Spec.Location != nil && ws.Spec.Location.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(ws.Spec.Location.Selector); err != nil {
			return nil, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "spec.location.selector is invalid: %v", err)
		}
	}
	var fit []candidate
	refused, counted, matches := map[string]string{}, false, false
	for _, shard := range shards {
		of := known(shard)
		why := unfit(shard, selector, of.claims)
		if why == "" {
			fit = append(fit, candidateFor(cluster, shard, of))
			continue
		}
		refused[shard.Name] = why
		matches = matches || why != unmatched
		counted = counted || unfit(shard, selector, 0) == ""
	}
	if len(fit) > 0 {
		return best(fit), nil
	}
	p := problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "no shard is available: %s", tell(refused, selector))
	p.shards = refused
	switch {
	case len(shards) == 0:
		p.message = "no shard is registered"
	case !matches:
		p.message = "no shard is available: none matches spec.location.selector, name labels that one has, or leave it out"
	case counted:
		p.again = claimsCount
	}
	return nil, p
}

// tell says why shards are refused, to who owns the Workspace: of those whose names its selector
// has, and, without their names, of all others that it selects.
func tell(refused map[string]string, selector labels.Selector) string {
	requirements, _ := selector.Requirements()
	named := func(shard string) bool {
		return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Values().Has(shard) })
	}
	var told []string
	others := sets.New[string]()
	for shard, why := range refused {
		switch {
		case why == unmatched:
		case named(shard):
			told = append(told, shard+" "+why)
		default:
			others.Insert(why)
		}
	}
	slices.Sort(told)
	if len(others) > 0 {
		each := map[bool]string{true: "each ", false: "each other one "}[len(told) == 0]
		told = append(told, each+strings.Join(sets.List(others), ", or "))
	}
	return strings.Join(told, ", ")
}

// unmatched is why a shard is refused that a Workspace does not select.
const unmatched = "does not match spec.location.selector"

// unfit tells why a shard takes no new logical cluster, which has been claimed so many times
// beside the load that it has told; it is empty if it does.
func unfit(shard *corev1alpha1.Shard, selector labels.Selector, claims int64) string {
	_, unschedulable := shard.Annotations[tenancy.UnschedulableAnnotation]
	load, _ := shardload.OfShard(shard)
	unready, full := shardload.Unready(shard), load.With(claims).FullOf()
	switch {
	case !selector.Matches(labels.Set(shard.Labels)):
		return unmatched
	case unschedulable:
		return "is unschedulable"
	case shard.DeletionTimestamp != nil:
		return "is being deleted"
	case shard.Spec.BaseURL == "" || externalURL(shard) == "":
		return "has no URL"
	case unready != "":
		return fmt.Sprintf("is not ready (%s)", unready)
	case full != "":
		return fmt.Sprintf("is full by --max-%s", full)
	default:
		return ""
	}
}

// externalURL returns the address that users know of a shard.
func externalURL(shard *corev1alpha1.Shard) string {
	if shard.Spec.ExternalURL != "" {
		return strings.TrimSuffix(shard.Spec.ExternalURL, "/")
	}
	return strings.TrimSuffix(shard.Spec.BaseURL, "/")
}
