// Package peers is the book of the shards: who they are, how to reach them, and
// whether they answer. Shards and front-proxies keep one each.
//
//	Shard objects of root ──► Book ──► Peer: clients of one shard at one address,
//	                            │            with a circuit breaker that all who ask share
//	                            └────► followers, for as long as the shard is there
//
// The book follows the Shard objects. When one goes, or gets another address,
// its followers end, and then its connections are closed.
package peers
