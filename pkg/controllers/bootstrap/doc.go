// Package bootstrap makes sure that the logical clusters exist which no
// Workspace asks for: system:admin, with the roles and bindings that apply in
// all logical clusters, on every shard, and root, with its WorkspaceTypes and
// bindings, on the root shard.
//
// It compares what is there with what should be and writes the difference, so
// that it can run at every start and after every change, and then writes
// nothing. Edits of a WorkspaceType stay, until a new version of Shardplane
// comes with another content for it; an older replica leaves that alone. Roles and bindings get back what they lack,
// unless they say that they should not be updated.
package bootstrap
