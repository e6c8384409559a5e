// Package workspaceindex resolves the path or name of a logical cluster to its name and shard, in memory.
//
// The index contains announcements of shards: LogicalClusters (names) and Workspaces (segments of paths):
//
//	root:a:b   node root ──a──► node 2x1k… ──b──► node 9f3m… ── placed on ──► shard-1
//	<name>:b                    node 2x1k… ──b──► …
//	user:<user>:b              node of the user's home ──b──► …
//	<name>                                       node 9f3m… ── placed on ──► shard-1
//
// Announcements of different shards may be made in any order and contradict each other, e.g. during a migration; the
// result depends only on the present announcements. Lookups take no lock and do not allocate. Writers are serialized.
package workspaceindex
