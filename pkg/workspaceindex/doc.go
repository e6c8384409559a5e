// Package workspaceindex resolves the path or name of a logical cluster to its
// name and the shard it lives on, in memory.
//
// The index is told what shards announce: their LogicalClusters (which names
// live there) and their Workspaces (what a name of a path leads to):
//
//	root:a:b   node root ──a──► node 2x1k… ──b──► node 9f3m… ── placed on ──► shard-1
//	<name>:b                    node 2x1k… ──b──► …
//	user:<user>:b              node of the user's home ──b──► …
//	<name>                                       node 9f3m… ── placed on ──► shard-1
//
// Announcements of different shards may come in any order and may contradict
// each other, as during a migration; the result depends on what is announced,
// never on the order. Lookups take no lock and allocate nothing. Writers take
// turns.
package workspaceindex
