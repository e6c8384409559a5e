// Package subtrees computes the storage that a workspace and all workspaces below it use on all shards. It does so if
// administrators limit this storage by annotations of the LogicalCluster at the top.
//
//	usage of this shard, by logical cluster ──┐
//	paths of its logical clusters ────────────┼──► sums ──► admission
//	limits and usages of other shards         │      │
//	    ▲  (SubtreeUsages on the cache server)┘      │
//	    └──────────── limits and usage of this shard ┘
//
// Sums lag by about a second for this shard and, because of the cache server, by some seconds for others.
package subtrees
