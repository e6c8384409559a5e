// Package replication says which objects of shards have replicas on cache servers, and what a replica
// of an object is (Table, Resource). Package push keeps the replicas of one shard on one cache server
// true, digest sums up what both have, verify compares everything without trusting anything, and health
// observes for a shard whether its cache server can be used.
//
//	shard: watch of /clusters/*  ──┬─► queue ─► push ─► create, update, delete
//	digests of both sides        ──┘                    below /shards/<me>/clusters/<cluster>
//
// Both sides are servers: push runs in shards, and in cache servers that relay replicas of other regions.
package replication
