// Package ringprocesses has members of a ring be processes, on a server that runs, and kills,
// freezes and cuts them off at random.
//
//	test ─── SIGKILL, SIGSTOP, SIGTERM ──► members ─── Begin, look, end ──► spans ──► check
//	  └───── cut, hold up ───────────────► wires ────► shard
//
// Each member works on all hashes that its ring gives it, and says of each piece of work when it
// began and when it saw last that its context had not ended. Of two members that overlap there,
// one has worked on what was not its own; and between two there may be no more time than a crash
// takes.
package ringprocesses
