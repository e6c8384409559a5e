package workspace

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

const (
	// claimsCount is for how long claims count at most beside what a shard tells: by then it
	// has told of those that have become logical clusters.
	claimsCount = time.Minute
	// step is the part of a shard's limit, in percent, from which on two shards are not used
	// alike. Below it, the number of their workspaces tells.
	step = 5
)

// experience is what this process knows of a shard beside what its object says.
type experience struct {
	// claims are those that the load which the shard has told does not have.
	claims int64
	// silent is set if it has not answered lately.
	silent bool
}

// candidate is a shard that may take a logical cluster.
type candidate struct {
	*corev1alpha1.Shard

	rank   uint64
	load   shardload.Load
	silent bool
	// told is whether the load is known.
	told bool
}

func candidateFor(cluster logicalcluster.Name, shard *corev1alpha1.Shard, known experience) candidate {
	load, told := shardload.OfShard(shard)
	return candidate{Shard: shard, rank: rankOf(cluster, shard.Name), load: load.With(known.claims), told: told, silent: known.silent}
}

// best returns the less used one of the two shards that the name of the logical cluster
// chooses. That is nearly as even as choosing the least used of all, and does not send all to
// the same shard where many choose by what was told some time ago: M. Mitzenmacher, The Power
// of Two Choices in Randomized Load Balancing, IEEE Transactions on Parallel and Distributed
// Systems 12 (10), 2001, and, for the age of what is known, How Useful Is Old Information?,
// ibid. 11 (1), 2000.
//
// Shards that are nearly full, or have not answered lately, are for those that fit nowhere
// else.
func best(fit []candidate) *corev1alpha1.Shard {
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

// lessUsedThan reports whether a shard is known to be used less than another one.
func (c candidate) lessUsedThan(other candidate) bool {
	return c.told && other.told &&
		cmp.Or(cmp.Compare(c.load.Percent()/step, other.load.Percent()/step), cmp.Compare(c.load.Workspaces.Used, other.load.Workspaces.Used)) < 0
}

// claims counts what this process has claimed of shards that the loads which they have told do
// not have: a load may be from before a logical cluster that was claimed earlier was made.
type claims struct {
	mu sync.Mutex
	// by has the times of the claims of each shard, in order.
	by map[string][]time.Time
}

// of returns how many claims of a shard count.
func (c *claims) of(shard string, now time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.ofLocked(shard, now)))
}

func (c *claims) ofLocked(shard string, now time.Time) []time.Time {
	all := c.by[shard]
	first := slices.IndexFunc(all, func(at time.Time) bool { return now.Sub(at) < claimsCount })
	if first < 0 {
		delete(c.by, shard)
		return nil
	}
	c.by[shard] = all[first:]
	return all[first:]
}

// add counts a claim of a shard.
func (c *claims) add(shard string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string][]time.Time{}
	}
	c.by[shard] = append(c.ofLocked(shard, now), now)
}

// drop drops so many of the oldest claims of a shard.
func (c *claims) drop(shard string, n int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.ofLocked(shard, now); n > 0 && len(all) > 0 {
		c.by[shard] = all[min(int(n), len(all)):]
	}
}

// rankOf orders shards for a logical cluster, the highest first: with random names every
// shard is first equally often, and another shard that comes or goes does not change the
// order of the others.
func rankOf(cluster logicalcluster.Name, shard string) uint64 {
	sum := sha256.Sum256([]byte(cluster.String() + "/" + shard))
	return binary.BigEndian.Uint64(sum[:])
}
