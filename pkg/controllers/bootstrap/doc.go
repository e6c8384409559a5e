// Package bootstrap creates the logical clusters without a Workspace: on every shard system:admin, with the roles and
// bindings that apply to all logical clusters, and on the root shard root, with its WorkspaceTypes and bindings.
//
// It writes differences to the desired state at each start and after changes. Edits of a WorkspaceType are retained until a
// version of Shardplane contains other content for it; an older replica does not revert this. Roles and bindings are
// completed, unless they opt out.
package bootstrap
