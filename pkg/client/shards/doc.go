// Package shards has one view of what all shards of an installation have of a resource:
//
//	Shard objects ── Source ──► Multi ──► informer and connection of shard-1 ──┐
//	(root, a cache server,        │  └──► informer and connection of shard-2 ──┼──► client.Union:
//	any shard, or a table)        └─────► …                                    ┘    look-ups, handlers
//
// Informers start, move and stop with the Shard objects. A shard that is away keeps its objects,
// and Missing names it; one whose Shard object goes takes them along, by OnLeave.
package shards
