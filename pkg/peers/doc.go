// Package peers maintains the book of the shards: their names, addresses and availability. Shards and front-proxies
// keep one each.
//
//	Shard objects of root ──► Book ──► Peer: clients of one shard at one address,
//	                            │            with a shared circuit breaker
//	                            └────► followers, for as long as the shard is registered
//
// If a Shard object is deleted or its address changes, its followers end and its connections are closed.
package peers
