// Package mount updates Workspaces that mount an object from the status of the object.
//
//	Workspaces with spec.mount ─┐
//	keys of all written objects ┼─► queue ─► GET of the object: status.URL and status.phase
//	definitions and bindings ───┘               └─► phase, condition and URL of the Workspace
//
// A mounted object may be of any kind. The keys of written objects are available from the usage counter of the shard, so
// that no watch, informer or goroutine is needed for a logical cluster, a kind or an object. docs/workspaces.md describes
// the behavior for users.
package mount
