// Package replicas reads objects that other shards have replicated to a cache server:
//
//	own shard     /clusters/*           ──► client.Informer ────────────┐ preferred
//	                                                                    ├──► Dual ──► Get, ByIndex, handlers
//	cache server  /shards/*/clusters/*  ──► client.Informer with reader ┘
//	                  checkpoints of the shards ──► Cache ──┘
//
// A cache server may lose its data, or be restored from a backup. The informers of a Cache compare the checkpoints of
// the shards with the known checkpoints. They keep objects that are missing only because the cache server lags
// behind. A Dual combines the objects of the own shard with these replicas.
//
// Package snapshot saves the replicas, so that a shard can start while its cache server is unavailable.
package replicas
