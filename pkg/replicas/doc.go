// Package replicas reads what other shards have replicated to a cache server:
//
//	own shard     /clusters/*           ──► client.Informer ────────────┐ preferred
//	                                                                    ├──► Dual ──► Get, ByIndex, handlers
//	cache server  /shards/*/clusters/*  ──► client.Informer with reader ┘
//	                         marks of the shards ──► Cache ──┘
//
// A cache server may lose its data, or be restored from a backup. The informers of a Cache compare
// the marks of the shards with those that were known, and keep what is missing only because the
// cache server is behind. A Dual shows the objects of the own shard and these replicas as one.
//
// Package snapshot keeps the replicas from one process to the next, so that a shard can start
// while its cache server is unavailable.
package replicas
