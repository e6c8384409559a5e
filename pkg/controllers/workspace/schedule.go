package workspace

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// Reasons of the condition WorkspaceScheduled in addition to those of the SDK.
const (
	reasonTypeInvalid      = "WorkspaceTypeInvalid"
	reasonShardUnreachable = "ShardUnreachable"
)

type problem struct {
	reason, message string
	shards          map[string]string // reason by shard, for administrators
	retry           time.Duration     // if positive, the delay until the next attempt without an event
}

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// chooseShard returns the shard for a new logical cluster: one that matches the Workspace's selector and accepts new ones.
func chooseShard(ws *tenancyv1alpha1.Workspace, cluster logicalcluster.Name, shards []*corev1alpha1.Shard, observed func(*corev1alpha1.Shard) shardObservation) (*corev1alpha1.Shard, *problem) {
	selector := labels.Everything()
	if ws.Spec.Location != nil && ws.Spec.Location.Selector != nil {
		var err error
		if selector, err = request.LabelSelector(ws.Spec.Location.Selector); err != nil {
			return nil, problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "spec.location.selector is invalid: %v", err)
		}
	}
	var fit []candidate
	rejected, counted, matches := map[string]string{}, false, false
	for _, shard := range shards {
		of := observed(shard)
		why := rejectionReason(shard, selector, of.claims)
		if why == "" {
			load, reported := shardload.OfShard(shard)
			fit = append(fit, candidate{Shard: shard, rank: rankOf(cluster, shard.Name), load: load.With(of.claims), reported: reported, silent: of.silent})
			continue
		}
		rejected[shard.Name] = why
		matches = matches || why != unmatched
		counted = counted || rejectionReason(shard, selector, 0) == ""
	}
	if len(fit) > 0 {
		return leastUsed(fit), nil
	}
	p := problemf(tenancyv1alpha1.WorkspaceReasonUnschedulable, "no shard is available: %s", report(rejected, selector))
	p.shards = rejected
	switch {
	case len(shards) == 0:
		p.message = "no shard is registered"
	case !matches:
		p.message = "no shard is available: none matches spec.location.selector, use labels of an existing shard, or remove it"
	case counted:
		p.retry = claimTTL
	}
	return nil, p
}

// report describes the reasons of rejected shards for the owner of the Workspace. It names only shards that the selector names.
func report(rejected map[string]string, selector labels.Selector) string {
	requirements, _ := selector.Requirements()
	named := func(shard string) bool {
		return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Values().Has(shard) })
	}
	var reported []string
	others := sets.New[string]()
	for shard, why := range rejected {
		switch {
		case why == unmatched:
		case named(shard):
			reported = append(reported, shard+" "+why)
		default:
			others.Insert(why)
		}
	}
	slices.Sort(reported)
	if len(others) > 0 {
		each := map[bool]string{true: "each ", false: "each other one "}[len(reported) == 0]
		reported = append(reported, each+strings.Join(sets.List(others), ", or "))
	}
	return strings.Join(reported, ", ")
}

const unmatched = "does not match spec.location.selector"

// rejectionReason returns why a shard with a number of additional claims does not accept logical clusters; empty if it does.
func rejectionReason(shard *corev1alpha1.Shard, selector labels.Selector, claims int64) string {
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
		return fmt.Sprintf("has reached --max-%s", full)
	default:
		return ""
	}
}

func externalURL(shard *corev1alpha1.Shard) string {
	return strings.TrimSuffix(cmp.Or(shard.Spec.ExternalURL, shard.Spec.BaseURL), "/")
}

const (
	// claimTTL is the time after which the reported load of a shard includes the logical cluster of a claim.
	claimTTL = time.Minute
	// loadStep is the difference of utilization in percent below which the numbers of workspaces are compared.
	loadStep = 5
)

// shardObservation is the state of a shard that this process has observed in addition to the Shard object.
type shardObservation struct {
	claims int64 // claims that the reported load does not include
	silent bool  // set if the shard has not responded recently
}

type candidate struct {
	*corev1alpha1.Shard

	rank             uint64
	load             shardload.Load
	silent, reported bool // reported is set if the shard has reported its load
}

// leastUsed returns the less used one of two shards that the hash of the logical cluster's name selects. The
// distribution is almost as even as if the least used of all shards was chosen. However, concurrent decisions based on
// outdated load do not all choose the same shard. See M. Mitzenmacher, The Power of Two Choices in Randomized Load
// Balancing, IEEE Transactions on Parallel and Distributed Systems 12 (10), 2001, and, for outdated information, How
// Useful Is Old Information?, ibid. 11 (1), 2000.
//
// Shards that are nearly full or have not responded recently are used only if there is no other one.
func leastUsed(fit []candidate) *corev1alpha1.Shard {
	good := slices.DeleteFunc(slices.Clone(fit), func(c candidate) bool { return c.silent || c.load.NearlyFull() })
	if len(good) == 0 {
		good = fit
	}
	slices.SortFunc(good, func(a, b candidate) int { return cmp.Compare(b.rank, a.rank) })
	if len(good) > 1 && good[1].lessUsedThan(good[0]) {
		return good[1].Shard
	}
	return good[0].Shard
}

func (c candidate) lessUsedThan(other candidate) bool {
	return c.reported && other.reported &&
		cmp.Or(cmp.Compare(c.load.Percent()/loadStep, other.load.Percent()/loadStep), cmp.Compare(c.load.Workspaces.Used, other.load.Workspaces.Used)) < 0
}

// claims counts the logical clusters that this process has placed, but that the reported load of the shard may not include.
type claims struct {
	mu sync.Mutex
	// by contains the times of the claims of each shard in ascending order.
	by map[string][]time.Time
}

func (c *claims) of(shard string, now time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.ofLocked(shard, now)))
}

func (c *claims) ofLocked(shard string, now time.Time) []time.Time {
	all := c.by[shard]
	first := slices.IndexFunc(all, func(at time.Time) bool { return now.Sub(at) < claimTTL })
	if first < 0 {
		delete(c.by, shard)
		return nil
	}
	c.by[shard] = all[first:]
	return all[first:]
}

func (c *claims) add(shard string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string][]time.Time{}
	}
	c.by[shard] = append(c.ofLocked(shard, now), now)
}

// drop removes the n oldest claims of a shard.
func (c *claims) drop(shard string, n int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.ofLocked(shard, now); n > 0 && len(all) > 0 {
		c.by[shard] = all[min(int(n), len(all)):]
	}
}

// rankOf returns the rank of a shard for a logical cluster (rendezvous hashing). Each shard is equally likely to have
// the highest rank. Adding or removing a shard does not change the order of the others.
func rankOf(cluster logicalcluster.Name, shard string) uint64 {
	sum := sha256.Sum256([]byte(cluster.String() + "/" + shard))
	return binary.BigEndian.Uint64(sum[:])
}
