// Package health observes for a shard whether its cache server can be used (CacheCheck), and since
// when nothing has been heard of other shards (Observer).
package health
