// Package garbagecollector deletes objects without existing owners, according to their owner references, as Kubernetes does.
// Logical clusters are independent of each other.
//
//	usage counter: all writes, from one watch of etcd (a callback, no goroutine)
//	     │  feed: decodes owner references and deletions
//	     ▼
//	graph: owner ─► dependents; objects without references are not included
//	     │  items to examine
//	     ▼
//	queue, logical clusters in round-robin order ─► collect: judge, orphan, finish
//	                                        │  owners by key and UID, absent only
//	                                        │  if confirmed by a quorum read
//	                                        ▼
//	                                    writer: DELETE as the collector, PATCH as the system
//
// The graph only determines which items to examine. Decisions are based on the objects themselves and are applied only to the
// examined version. docs/workspaces.md describes the behavior for users.
package garbagecollector
