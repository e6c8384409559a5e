// Package health checks the cache server of a shard (CacheCheck), and measures the staleness of the replicas of other
// shards (Observer).
package health
