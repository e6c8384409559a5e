// Package robustness injects faults into a cluster of processes while clients write, list and watch.
// It records the responses, and checks them against the properties of lists and watches
// (docs/listwatch.md).
//
//	writers ─┐                           ┌─► history.Check ─► violations
//	listers ─┼─► recorder ─► History ────┤
//	watchers ┘       ▲                   └─► Porcupine
//	faults: kill -9, restarts, cut streams, compaction
//
// README.md describes how to run it, and lists the bugs that it found.
package robustness
