// Package load runs workloads against an API server through its public API:
// single-object requests, workspaces, lists and watches.
//
//	Target ──► Requests | Workspaces | Lists | Watches ──► []measure.Result
//
// A Target is one logical cluster, all of a shard, or a server that has none, so
// that one workload measures Shardplane and what it is compared with. Every
// workload ends by itself: by its duration, its number of operations, or the
// context.
package load
