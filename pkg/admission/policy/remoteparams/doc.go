// Package remoteparams reads the parameters of policies that are on other shards, or are too
// large to be kept, and remembers them for a moment.
//
//	policy of a provider elsewhere ─► Kind ─► Cache ──► one read at a time of each parameter,
//	                                            │       at the shard that has the policy
//	                                            └────► replica snapshot, for a start in an outage
//
// What is asked for again is read at most once a second, and a write waits for that only if
// the last read is five seconds old. While a parameter cannot be read, what was read last
// holds, as with the policies themselves. Whoever writes policies chooses what is read: so a
// read, the reads at a time, and what is remembered of a provider, are all bounded.
package remoteparams
