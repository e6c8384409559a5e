package shard

import (
	"iter"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/tenancy/toplevel"
)

// newOwners returns the usage of top-level owners on the shard.
func newOwners(counter *usage.Counter, informers *controllers.Informers, local *local) *toplevel.Sums {
	return toplevel.NewTopLevelSums(toplevel.Config{
		Stored: func() (map[logicalcluster.Name]subtrees.Amount, bool) {
			all, known := counter.All()
			amounts := make(map[logicalcluster.Name]subtrees.Amount, len(all))
			for cluster, used := range all {
				amounts[cluster] = subtrees.Amount(used)
			}
			return amounts, known && local.logicalClusters.HasSynced()
		},
		PathOf: func(cluster logicalcluster.Name) string {
			if lc := local.get(cluster); lc != nil {
				return tenancy.PathOf(lc).String()
			}
			return ""
		},
		Workspaces: func() map[logicalcluster.Name]int64 {
			counts := map[logicalcluster.Name]int64{}
			for _, ws := range informers.Workspaces.Lister().List(nil) {
				counts[logicalcluster.From(ws)]++
			}
			return counts
		},
	})
}

// newSubtrees returns the usage of workspaces including those below them.
func newSubtrees(shard string, counter *usage.Counter, informers *controllers.Informers) *subtrees.Sums {
	sums := subtrees.NewSubtreeSums(subtrees.Config{
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
		Others:     informers.SubtreeUsages,
		ShardState: tenancy.ShardStateOf(informers.Shards),
	})
	counter.Listen(func(string) { sums.Changed() })
	return sums
}
