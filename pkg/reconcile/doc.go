// Package reconcile provides the common parts of controllers, so that a controller package contains only decisions.
//
//	sources ──keys──► queue ──► N workers ──► Reconcile(ctx, key) ──► Commit
//	(informers, …)      ▲                          │
//	                    └── retry after an error, ─┘
//	                        a conflict or a delay
//
// A Controller owns its goroutines: Run returns after all of them have exited. A Manager starts a catalogue of
// controllers, each after its informers have synced, and stops them in reverse order. Commit writes the difference
// between two states of an object with optimistic concurrency. The queue serves logical clusters in round-robin order
// and limits the workers of each. Latest hides the delay between a write and its arrival in an informer.
//
// Package leader elects the replica that runs the controllers. Package purge deletes all objects of a namespace or
// logical cluster. Package events records Events for users, and package secrets creates Secrets.
package reconcile
