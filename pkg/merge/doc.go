// Package merge merges the lists and watches of several shards.
//
//	LIST   heads of all shards ─► Vector ─► items of one shard after the other, each with its version
//	WATCH  streams of all shards ─► one event at a time ─► Vector advances ─► one stream
//
// Each shard has its own revisions. Therefore a merged version is a Vector with one revision per shard. All
// objects in merged responses have such a version. A client can resume from any of them, and each shard can
// extract its own revision.
//
// The package accesses shards only through functions that send requests.
package merge
