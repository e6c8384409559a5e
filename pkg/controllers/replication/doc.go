// Package replication pushes selected objects of a shard to cache servers
// and keeps the replicas true.
//
// One mechanism serves all kinds: a table names the resources and which of
// their objects to push. A controller for each cache server keeps no objects, but
// of each its key, and of its replica the hash and the version that the cache server has
// acknowledged. Of every key that changes on either side, the object is read, and its
// replica is created, updated or deleted:
//
//	shard: watch of /clusters/*       ──┐
//	                                    ├─► queue ─► push ─► create, update, delete
//	cache: watch of the metadata below  │                    below /shards/<me>/clusters/<cluster>
//	       /shards/<me>/clusters/*    ──┤
//	paths of logical clusters         ──┤
//	digests of both sides             ──┘
//
// A replica is read only if it may not be as the controller has written it. Package digest sums up
// both sides, so that what is wrong is found although nobody tells of it.
//
// Nothing depends on having seen a change happen: after a restart of either
// server, or a write behind the controller's back, the comparison of what is there
// finds what is missing, different or left over.
package replication
