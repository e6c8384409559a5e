// Package cacheserver is the cache server: an API server that holds replicas of
// selected objects of all shards, so that every shard can read what the others
// have without talking to them.
//
//	shard root ──push──►  /services/cache/shards/root/clusters/<cluster>/apis/…
//	shard one  ──push──►  /services/cache/shards/one/clusters/<cluster>/apis/…
//	                          │  request filter: shard and cluster → context
//	                          │  client certificate → system:masters only
//	                          │  custom resources with a fixed set of kinds
//	                          ▼
//	                      <prefix>/<group>/<resource>/<shard>/<cluster>/[<ns>/]<name>
//	all shards ◄─watch──  /services/cache/shards/*/clusters/*/apis/…
//
// It decides nothing about the objects: schemas are not enforced, status is not
// a subresource, and there is no admission. A shard owns what lies below its
// own name and keeps it true (package replication). Package verify below compares
// the two for operators, and package relay has a cache server read from those of
// other regions what is meant for the whole installation.
package cacheserver
