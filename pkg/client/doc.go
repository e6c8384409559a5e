// Package client gives controllers access to many logical clusters. It provides typed, dynamic, metadata and discovery
// clients for one logical cluster or for all of a shard, and informers that separate the objects of logical clusters.
//
//	Factory ── Cluster(name or path) ──► Scope ─┬─► kinds.Workspaces.In(scope).Get(…) typed
//	   │    ── Wildcard() ─────────────► Scope  ├─► scope.Dynamic(), Metadata()
//	   │    ── Shard(name).Wildcard() ─► Scope  └─► kinds.Workspaces.Informer(scope, …) Informer[T]
//	   └ one HTTP transport for all of them
//
// An informer streams a resource (list, then watch, resumed by resourceVersion) into a store keyed by logical
// cluster, namespace and name. The shared informers of client-go do not work on a wildcard, because their key
// namespace/name does not distinguish objects of two logical clusters.
//
// Objects returned by listers and passed to handlers are shared: copy them before changing them.
//
// Package kinds defines the resources of the system with their types. A program that uses few of them can define
// these itself, to link fewer types. Package documents provides discovery and OpenAPI clients. Package ring
// divides the objects among the replicas of a controller. Package shards combines the objects of all shards.
// Package clienttest is an in-memory API server for tests.
package client
