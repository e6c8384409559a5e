// Package ringprocesses tests a ring with processes as members. It kills, freezes and disconnects them
// at random.
//
//	test ─── SIGKILL, SIGSTOP, SIGTERM ──► members ─── Begin, check, end ──► spans ──► check
//	  └───── cut, stall ─────────────────► links ────► shard
//
// Each member processes all hashes that its ring assigns to it. It reports when each piece of work
// started, and when its context was last observed to be active. Spans of two members must not overlap,
// and the time between two spans must not exceed that of a crash.
package ringprocesses
