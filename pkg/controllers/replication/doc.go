// Package replication pushes selected objects of a shard to the cache server
// and keeps the replicas true.
//
// One mechanism serves all kinds: a table names the resources and which of
// their objects to push. For every key that changes on either side, the object
// in the shard and its replica are compared, and the replica is created,
// updated or deleted:
//
//	shard: informer over /clusters/*  ──┐
//	                                    ├─► queue ─► decide ─► create, update, delete
//	cache: informer over                │                      below /shards/<me>/clusters/<cluster>
//	       /shards/<me>/clusters/*    ──┤
//	paths of logical clusters         ──┤
//	audit of everything, now and then ──┘
//
// Package digest sums up both sides, so that what is wrong is found although nobody tells of it.
//
// Nothing depends on having seen a change happen: after a restart of either
// server, or a write behind the controller's back, both informers tell the
// present state and the comparison finds what is missing, different or left over.
package replication
