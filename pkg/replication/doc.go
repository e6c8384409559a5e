// Package replication defines the objects of shards that are replicated to cache servers (Table, Resource), and their
// replicas. Package push replicates one shard to one cache server, digest summarizes replicas, and health observes the
// cache server of a shard.
//
//	shard: watch of /clusters/*  ──┬─► queue ─► push ─► create, update, delete
//	digests of both sides        ──┘                    below /shards/<me>/clusters/<cluster>
//
// Package push runs in shards, and in cache servers that relay replicas of other regions.
package replication
