package shard

import (
	"iter"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// newSubtrees returns the sums of what the counter counts.
func newSubtrees(shard string, counter *usage.Counter, informers *controllers.Informers) *subtrees.Sums {
	sums := subtrees.New(subtrees.Config{
		Self:            shard,
		LogicalClusters: informers.LogicalClusters,
		Stored: func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) {
			all, known := counter.All()
			return func(yield func(logicalcluster.Name, subtrees.Amount) bool) {
				for cluster, used := range all {
					if !yield(cluster, subtrees.Amount(used)) {
						return
					}
				}
			}, known
		},
		Others:   informers.SubtreeUsages,
		Standing: tenancy.Standing(informers.Shards),
	})
	counter.OnChange(sums.Changed)
	return sums
}
