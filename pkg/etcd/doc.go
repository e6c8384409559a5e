// Package etcd gives the server its one etcd client: of an etcd server that
// runs embedded in the process, or of an external etcd cluster.
//
// The embedded server listens on nothing. Its client calls the server's RPC
// handlers directly, which saves the encoding and the two socket hops of every
// read and write, and leaves no port to protect. What a network connection
// would have given, a well-defined end, is done here instead: Stop first
// refuses new calls, then waits for the ones in flight, and only then stops
// the server below them.
//
//	Start:  lock data directory → check it → etcd → in-process client → Ready
//	Stop:   refuse calls → close client → wait for calls → etcd → unlock
//
// Claim, before anything else, compares whose the data is. Snapshot and Restore
// are its backup, which package snapshot offers to people at a terminal.
//
// All resources of a process share the client. The owner of the client, and
// nobody else, closes it.
package etcd
