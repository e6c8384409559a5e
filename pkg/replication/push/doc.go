// Package push pushes selected objects of a shard to a cache server and keeps the replicas true.
//
// One mechanism serves all kinds: a table names the resources and which of
// their objects to push. The controller keeps no objects, but
// of each its key, and of its replica the hash and the version that the cache server has
// acknowledged. Of every key that changes, the object is read, and its replica is created,
// updated or deleted.
//
// Replicas are not watched. Digests sum up both sides, so that a replica that somebody else
// has changed is found by the next comparison; only then it is read.
//
// Nothing depends on having seen a change happen: after a restart of either
// server, or a write behind the controller's back, the comparison of what is there
// finds what is missing, different or left over.
package push
