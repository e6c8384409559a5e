// Package frontproxy is the one address of a Shardplane installation: it
// authenticates requests, finds the shard of the logical cluster they are for,
// and forwards them there.
//
//	TLS ─► recover ─► count ─► probes ─► authenticate ─► mappings ─┬─► /clusters/…: resolve ─► forward ─► shard
//	                                                               ├─► /metrics
//	                                                               └─► 404
//	   root's Shards ─► followers (one a shard): Workspaces, LogicalClusters ─► index ─┘
//
// The router (route.go) finds the target of each call: the shard of a logical cluster, a server of
// the mapping file, a server that a tenant has mounted, or all shards. The gate (gate.go) decides what
// users learn of logical clusters that they may not enter.
//
// It keeps no state but what it can read again from the shards. It needs no
// shard to start, and answers for the shards it knows while one of them is down.
package frontproxy
