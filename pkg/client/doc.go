// Package client gives controllers access to many logical clusters: typed,
// dynamic, metadata and discovery clients for one logical cluster or for all of
// a shard, and informers that keep objects of different logical clusters apart.
//
//	Factory ── Cluster(name or path) ──► Scope ─┬─► kinds.Workspaces.In(scope).Get(…) typed
//	   │    ── Wildcard() ─────────────► Scope  ├─► scope.Dynamic(), Metadata()
//	   │    ── Shard(name).Wildcard() ─► Scope  └─► kinds.Workspaces.Informer(scope, …) Informer[T]
//	   └ one HTTP transport for everything
//
// An informer streams its resource (list, then watch, resumed by
// resourceVersion) into a store keyed by logical cluster, namespace and name.
// client-go's shared informer is not usable on a wildcard: its key is
// namespace/name, so same-named objects of two logical clusters overwrite each
// other.
//
// Objects that listers and handlers hand out are shared: copy before changing.
//
// Package kinds has the resources of the system, each with its types. Who has a few of
// their own defines these, and links no others. Package documents asks what is served.
//
// Package ring divides the objects among replicas of a controller. Package shards has one
// view of what all shards have, by an informer of each. Package clienttest has an API server in
// memory for tests of such clients.
package client
