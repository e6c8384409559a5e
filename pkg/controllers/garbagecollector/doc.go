// Package garbagecollector deletes objects whose owners are gone, as Kubernetes does by their
// owner references, in each logical cluster for itself.
//
//	counter of usage: every write, from one watch of etcd (a callback, no goroutine)
//	     │  feed: decodes who owns and who is being deleted
//	     ▼
//	graph: owner ─► dependents; nothing of objects that nobody owns
//	     │  what is to be looked at
//	     ▼
//	queue, logical clusters in turns ─► collect: judge, orphan, finish
//	                                        │  owners by key and UID, absent only
//	                                        │  as a quorum says
//	                                        ▼
//	                                    writer: DELETE as the collector, PATCH as the system
//
// The graph only says when to look. What is done follows from the objects themselves, and holds
// for the version of them that was looked at. docs/workspaces.md tells what users see of it.
package garbagecollector
