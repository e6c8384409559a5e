// Package shards combines the objects of a resource on all shards of an installation:
//
//	Shard objects ── Source ──► Multi ──► informer and connection of shard-1 ──┐
//	(root, a cache server,        │  └──► informer and connection of shard-2 ──┼──► client.Union:
//	any shard, or a table)        └─────► …                                    ┘    lookups, handlers
//
// Informers start, move and stop according to the Shard objects. The objects of an unreachable shard are kept, and
// Missing reports it. When its Shard object is deleted, its objects leave (OnLeave).
package shards
