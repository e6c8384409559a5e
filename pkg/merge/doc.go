// Package merge makes one list, and one watch, of those of several shards.
//
//	LIST   heads of all shards ─► Vector ─► items of shard after shard, each with its version
//	WATCH  stream of each shard ─► one event at a time ─► Vector goes on ─► one stream
//
// Each shard counts its revisions by itself, so a merged version is a Vector: how far
// each shard has been seen. It is in every object of a merged answer, so that a client
// can resume from any of them, and a shard finds its own revision in it.
//
// The package knows shards by what answers their requests, and nothing of servers.
package merge
