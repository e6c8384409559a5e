// Package mount keeps Workspaces that are mounts true to the objects that they mount.
//
//	Workspaces with spec.mount ─┐
//	keys of all that is written ┼─► queue ─► GET of the object: status.URL and status.phase
//	definitions and bindings ───┘               └─► phase, condition and URL of the Workspace
//
// A mounted object may be of any kind. What is written on the shard is known to who counts it, so
// that there is no watch, informer or goroutine for a logical cluster, a kind or an object.
// docs/workspaces.md tells what users see of it.
package mount
