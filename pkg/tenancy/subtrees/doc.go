// Package subtrees adds up what a workspace and all workspaces below it store, on
// all shards, where that is limited: by annotations of the LogicalCluster at the
// top, which administrators set.
//
//	counts of the own shard, by logical cluster ──┐
//	paths of its logical clusters ────────────────┼──► sums ──► admission
//	limits and shares of other shards             │      │
//	    ▲  (SubtreeUsages on the cache server) ───┘      │
//	    └────────────── limits and share of the own shard┘
//
// A sum is about a second late for what the own shard stores, and, with the way
// over the cache server, some seconds for what others do.
package subtrees
