// Package workspace creates the logical cluster of each Workspace on a chosen shard, and deletes it with the Workspace.
//
//	Workspace on shard A                       LogicalCluster on shard B (may be A)
//	────────────────────                       ────────────────────────────────────
//	created by a user
//	1 claim: name, shard, type, URL, finalizer
//	2 ─────────── watch, live read ─────────►  created, owner = Workspace
//	3 phase Initializing                       default namespace, initializers
//	                                           phase Ready
//	4 phase Ready  ◄──────────────── watch ──
//
//	deleted by a user
//	1 ─────────────────────────────── watch ►  deleted after its content
//	2 finalizer removed ◄─────────── watch ──
//
// The claim is written before any other action. Hence there is exactly one logical cluster for a Workspace, regardless of
// failures and retries. A shard only watches other shards, restricted to the objects that concern it, and never writes to
// them: the claim contains the request, and the controller placement of shard B fulfills it. Both shards verify the state of
// the other one with a live read before irreversible steps. If the chosen shard is A, the workspace controller does all of
// this.
package workspace
