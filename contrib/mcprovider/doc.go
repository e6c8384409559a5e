// Package mcprovider has controllers of multicluster-runtime work in all logical clusters of a
// Shardplane at the cost of one: of each kind there is one stream from each shard, whatever the
// number of logical clusters, and what a logical cluster takes by itself is an entry in a map.
//
//	New ─► Provider ─┬─► Source(obj)      events of all logical clusters, for WatchesRawSource
//	                 ├─► Get(name)        cluster.Cluster: a value, made where it is needed
//	                 ├─► Start(aware)     runs all; engages each logical cluster, unless NoEngage
//	                 └─► Gate(reconciler) work on what a ring gives to this replica, and no other
//
// A cluster's reads are from what the streams have brought, and its writes go through the
// front-proxy, over one transport for all.
package mcprovider
