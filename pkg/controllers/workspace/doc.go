// Package workspace gives every Workspace its logical cluster, on a shard of
// its own choice, and takes it away again.
//
//	Workspace on shard A                       LogicalCluster on shard B (may be A)
//	────────────────────                       ────────────────────────────────────
//	created by a user
//	1 claim: name, shard, type, URL, finalizer
//	2 ──────────────────────────────────────►  created, owner = Workspace
//	3 phase Initializing                       default namespace, initializers
//	                                           phase Ready
//	4 phase Ready  ◄──────────────── watch ──
//
//	deleted by a user
//	1 ──────────────────────────────────────►  deleted: content goes, then it does
//	2 finalizer removed ◄─────────── watch ──
//
// The claim is written before anything else happens, so that whatever fails
// later, and however often it is repeated, there is one logical cluster for a
// Workspace. What happens on other shards is seen through one watch per shard,
// restricted to the logical clusters whose owner is here.
package workspace
