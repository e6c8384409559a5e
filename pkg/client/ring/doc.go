// Package ring divides the hashes of all objects among the replicas of a controller, using only Leases. Each hash
// has at most one worker at a time. If a replica joins or leaves, few hashes move.
//
//	ring.New ─► Run ─┬─► LoadedRanges: what informers load      client.InformerOptions.Ranges
//	                 ├─► Begin … end: around work on a hash     reconcile.Config.Gate
//	                 └─► OnGain: new ranges to process          reconcile.Gained
//
// There are two kinds of Leases, in one namespace:
//
//	<ring>        written by the coordinator, one of the members: the annotation
//	              ring.shardplane.io/table contains the owners and moves of 256 slots
//	<ring>-<id>   written by its member each RenewInterval, and by a coordinator to expel it
//
// Rules:
//
//  1. A member works on a hash only while the newest table that it has read assigns the hash to it, and
//     less than RenewDeadline has passed since it sent the last successful renewal, by its monotonic
//     clock. A renewal is successful when the table was read after it, too. Otherwise the contexts of
//     the work end.
//  2. A slot of a live member moves by two writes of the table. The first one records the move, and the
//     new owner loads the slot and reports that in its Lease. Then, or after LoadTimeout, the old owner
//     begins no work in it, waits for running work for GracePeriod, ends its contexts, and reports in
//     its Lease that it has released the moves up to this table. The second write completes the move.
//  3. A member is expelled by a member that has observed its Lease at one version for LeaseDuration of
//     its own monotonic clock, with an update of that version. If that conflicts, the member is alive. A
//     member that finds itself expelled joins under a new id.
//  4. A table replaces the version from which it was computed, so one of two coordinators fails. The
//     coordinator is the writer of the last table while it is alive, and then the first member by id. All
//     its state is in the Leases; without a coordinator, members continue their work.
//  5. If the ring's Lease was deleted, another one is created after LeaseDuration, with epochs from 1. A member that
//     has read both joins under a new id. Until it does, its Lease may report moves of the former table, so a member
//     with reports is not added to a table, and none reports moves when RenewDeadline has passed (rule 1).
//  6. When a member joins, only the slots of its share move. When a member leaves, only its own
//     slots move.
//
// Guarantee: no hash has two workers at a time, even if members crash, freeze or lose the connection. This requires
// that work ends within GracePeriod after its context, that the rates of clocks differ by at most a tenth, and that
// only members write these Leases. Clocks are not compared.
//
// Limitations:
//   - If a process freezes between checking its context and a write, it makes that write when it resumes,
//     after others have taken over. Preconditions on resourceVersion make most of these writes harmless.
//   - On most systems the monotonic clock stops while a machine is suspended.
//   - Work that does not end within GracePeriod after its context is detected, but cannot be stopped: Run
//     returns ErrOverrun, and the process must exit before LeaseDuration after the last renewal.
//   - If the server is restored from an older backup, later agreements are lost. All members join again
//     when they detect it; until then, for at most RenewDeadline and GracePeriod, two may work on one hash.
//     Deleted Leases are detected and safe, unless the ring's Lease is deleted within two LeaseDuration
//     after it was created, e.g. by a second deletion: a member that has not read it by then has waited
//     for LeaseDuration, and creates another one.
//   - ContinueIfIsolated gives up the guarantee for a member that cannot reach the server.
//
// The protocol is a state machine without a clock and a server (machine.go, coordinate.go, step.go, plan.go).
// TestModel runs it in simulated time with drifting clocks, lost messages, crashes, freezes and partitions.
package ring
