// Package cacheserver is the cache server: an API server with replicas of selected objects of all shards, so that a
// shard can read the objects of others without connecting to them.
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
// It does not validate objects: schemas are not enforced, status is not a subresource, and there is no admission. A shard
// owns the objects below its own name and replicates them (package replication). Package verify compares both sides for
// administrators, and package relay reads replicas from the cache servers of other regions.
package cacheserver
