// Package reconcile is the plumbing of controllers: what is the same in all of
// them, so that a controller itself is only its decisions.
//
//	sources ──keys──► queue ──► N workers ──► Reconcile(ctx, key) ──► Commit
//	(informers, …)      ▲                          │
//	                    └── again after an error, ─┘
//	                        a conflict or a while
//
// A Controller owns its goroutines: Run returns when all of them have ended. A
// Manager starts a catalogue of controllers, each when its informers have
// synced, and stops them in reverse order. Commit writes the difference between
// two states of an object, once, and only if nobody else wrote in between.
// In the queue logical clusters take turns, and none keeps all workers busy.
// Latest bridges the moment between an own write and its arrival in an informer.
// Package leader elects the replica that runs them. Package purge deletes all
// objects of a namespace or logical cluster. Package events tells users about objects.
// Package secrets makes those in which controllers keep what they generate.
package reconcile
