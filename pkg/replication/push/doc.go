// Package push pushes selected objects of a shard to a cache server and keeps their replicas up to date.
//
// One mechanism serves all resources: a table contains the resources and selects their objects. The controller stores no
// objects, but only the key of each object, and the hash and version of its replica that the cache server has
// acknowledged. For each key that changes, it reads the object and creates, updates or deletes the replica.
//
// The controller does not watch the replicas. It compares digests of both sides. If another client has changed a
// replica, the next comparison finds it, and only then the replica is read.
//
// No change must be observed for the result to be correct: after a restart of either server, or a write by another
// client, the comparison finds missing, different and orphaned replicas.
package push
