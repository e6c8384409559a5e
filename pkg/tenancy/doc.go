// Package tenancy contains definitions for logical clusters and workspaces that servers, controllers and
// admission share. These are annotations, labels and finalizers (names.go), the labels of the life cycle, and the
// resolution of WorkspaceTypes.
//
//	subtrees                the storage used by a workspace and all workspaces below it
//	toplevel                the storage used by top-level owners on a shard
//	shardload               heartbeats and load of shards
//	exportuses              the exports that have consumers on a shard
//	replicationcheckpoints  the objects of a shard that the cache server has
//	cachekinds              the registration of kinds that are exchanged through the cache server
//
// Package request contains definitions that storage, clients and URL parsers also need, and its package
// identity those about the identity of users. They are separate because built-in resources must not depend on
// clients. Names that kcp's SDK defines are used from there.
package tenancy
