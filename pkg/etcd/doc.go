// Package etcd provides the etcd client of a server, either for an embedded etcd server in the same process or
// for an external etcd cluster.
//
// The embedded server does not listen on any port. Its client calls the RPC handlers directly, which avoids
// encoding and two socket hops for each request, and leaves no port to protect.
//
//	Start:  lock data directory → check it → etcd → in-process client → Ready
//	Stop:   close client → reject calls and wait for pending ones → etcd → unlock
//
// Before other requests, Claim checks that the data belongs to the server. Snapshot and Restore are its backup;
// package snapshot provides them for the command line.
package etcd
