// Package ring has replicas of a controller find each other and divide the hashes of all
// objects, by Leases alone: each hash has one worker, never two, and who comes or goes moves
// little.
//
//	ring.New ─► Run ─┬─► Holds: what informers are to have      client.InformerOptions.Ranges
//	                 ├─► Begin … end: around work on a hash     reconcile.Config.Gate
//	                 └─► OnGain: what is new to work off        reconcile.Gained
//
// Two kinds of Leases, in one namespace:
//
//	<ring>        written by the coordinator, one of the members: the annotation
//	              ring.shardplane.io/table says whose each of 256 slots is, and which move
//	<ring>-<id>   written by its member each RenewInterval, and by a coordinator to expel it
//
// The rules:
//
//  1. A member works on a hash only while the newest table it has read gives it that, and less
//     than RenewDeadline has passed since it sent the last renewal that succeeded, by its
//     monotonic clock; a renewal has succeeded when the table was read after it, too. When
//     either ends, so do the contexts of the work.
//  2. What a living member has moves in two writes of the table: the first enters the move; the
//     new one loads what comes, and says so in its Lease; then, or after LoadTimeout, the member
//     begins nothing there any more, lets what runs end, for GracePeriod, ends its contexts, and says
//     in its Lease that it has released what moves up to this table; the second gives it to the
//     new one. A move that is taken back and comes again, or
//     goes to somebody else, has to be loaded and released again.
//  3. A member is expelled by who has seen its Lease at one version for LeaseDuration of its own
//     monotonic clock, with an update of that version. If that conflicts, the member lives. Who
//     finds itself expelled joins as another member.
//  4. A table replaces the version that it was made from, so that of two coordinators one fails.
//     The coordinator is who wrote the last table, as long as it is heard of, and then the first
//     by id. The next one finds all it needs in the Leases; meanwhile all work on.
//  5. A join moves the newcomer's part, and a leave the leaver's. One slot more may move to
//     have fewer ranges.
//
// What is guaranteed: no hash has two workers at a time, however members crash, freeze and lose
// the server, as long as work ends within GracePeriod after its context, clocks run at rates no more
// than a tenth apart, and nobody writes these Leases but members. Clocks are not compared.
//
// What is not:
//   - A process that freezes between looking at its context and a write makes that write when it
//     goes on, after others have taken over. Preconditions on resourceVersion in writes make
//     most of these harmless.
//   - The clock of a machine that is suspended stands still with most systems, and so does what
//     this member knows of the time.
//   - Work that does not end within GracePeriod after its context is found, but cannot be ended: Run
//     returns ErrOverrun, and the process has to end. A library does not end processes, and a
//     callback could be late or wrong, too; what comes back from Run is what every caller looks
//     at already. Until the process has ended, others may begin that work, not before
//     LeaseDuration after the last renewal: an overrun member releases and renews nothing.
//   - A server that is set back to an older state knows nothing of what was agreed since. All
//     join anew as soon as they see it; until then, for RenewDeadline and GracePeriod at most, two may
//     work on one hash. Leases that somebody deletes are found missing, and are safe, unless the
//     ring's Lease is deleted within two LeaseDuration after it was made, as by a second deletion:
//     who has not read it by then has waited for one for LeaseDuration, and makes another one.
//   - Isolation Continue gives up all of this for a member that does not reach the server.
//
// The protocol is a state machine without a clock or a server of its own (machine.go,
// moves.go, coordinate.go, step.go, plan.go, balance.go). TestModel runs it in time that passes at once, with
// drifting clocks, a lossy server, stale watches, crashes, freezes and cuts.
package ring
