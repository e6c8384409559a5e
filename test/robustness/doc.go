// Package robustness breaks a cluster of processes while many clients write,
// list and watch, records what each of them sees, and checks the record against
// the properties that lists and watches promise (docs/listwatch.md).
//
//	writers ─┐                           ┌─► history.Check ─► violations
//	listers ─┼─► recorder ─► History ────┤
//	watchers ┘       ▲                   └─► Porcupine
//	faults: kill -9, restarts, cut streams, compaction
//
// README.md says how to run it, and what it has found.
package robustness
