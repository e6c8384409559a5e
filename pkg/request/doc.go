// Package request carries what a request is for, its Scope, in its context, and
// knows the URL forms that name it, and the rules of names. WithoutBodies keeps
// what must not be in logs out of them.
//
// It is the contract at the centre of the server: every layer below the HTTP
// filters learns the tenant of a request from here and from nowhere else. It
// imports nothing else of this module, and no API server.
//
//	/clusters/<name|path|*>/…                       a logical cluster, or all of a shard
//	/services/cache/shards/<name|*>/clusters/<…>/…  the same on the cache server, below a shard
//	/services/admin/…                               what any shard tells of the whole installation
//
// Package identity says who a user is in the logical cluster of a request, and fieldmanagers counts the
// entries of managed fields that a request brings along. Package hashrange
// has what servers and clients agree on about parts of the objects, and shardselector parses
// how requests name them. Packages patterns, schemacosts and patchcosts limit what regular expressions,
// schemas and patches of tenants cost.
package request
