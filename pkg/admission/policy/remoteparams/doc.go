// Package remoteparams reads the parameters of policies that are on other shards, or are too large to be
// cached by an informer, and caches them briefly.
//
//	policy of a provider elsewhere ─► Kind ─► Cache ──► one read at a time of each parameter,
//	                                            │       from the shard of the policy
//	                                            └────► replica snapshot, for a start in an outage
//
// A response is read again at most once a second. A write waits for this only if the last read is more than
// five seconds old. If a read fails, the cached response remains in use, as policies do. Authors of policies
// choose the parameters, so the size of a read, the number of concurrent reads, and the cached bytes per
// provider are limited.
package remoteparams
