// Package tenancy has the words by which servers, controllers and admission
// agree on logical clusters and workspaces, each in one place: annotations,
// labels and finalizers (names.go), the labels of the life cycle, and which
// WorkspaceType a Workspace has. Package subtrees adds up what workspaces store with
// all below them, toplevel what top-level owners store on a shard, and exportuses has the kind by which shards tell each other whose
// exports they have consumers of, and replicationcheckpoints that by which they say how much of
// their objects the cache server has, all of which cachekinds makes; shardload is how they say that they live and how much
// they hold.
//
// What storage, clients and the parsers of URLs need as well is in package
// request, and who a user is in a logical cluster, where a service account is at
// home included, in its package identity: built-in resources ask for that, and
// they know nothing of clients. Names that the API types of kcp's SDK have are
// used from there.
package tenancy
