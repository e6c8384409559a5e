// Package history is what clients of a cluster saw, and the checks of it: pure
// functions from a History to the Violations of the properties of lists and
// watches. It knows no servers.
//
//	Ops, Sessions, Lists, Probes ─► truth: every state of every object,
//	                                put together from all observers
//	                                     │
//	                        each stream and list against it ─► Violations
package history
