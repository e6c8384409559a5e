// Package replication defines the objects of shards that are replicated to cache servers (Table), and their replicas.
// Package push replicates a shard to a cache server, digest summarizes replicas, and health observes a cache server.
//
//	shard: watch of /clusters/*  ──┬─► queue ─► push ─► create, update, delete
//	digests of both sides        ──┘                    below /shards/<me>/clusters/<cluster>
//
// Package push runs in shards, and in cache servers that relay replicas of other regions.
package replication
