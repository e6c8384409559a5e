// Package mcprovider runs controllers of multicluster-runtime in all logical clusters of a Shardplane at the cost of one: there is one
// watch per kind and shard, and each logical cluster only needs an entry in a map.
//
//	New ─► Provider ─┬─► Source(obj)      events of all logical clusters, for WatchesRawSource
//	                 ├─► Get(name)        cluster.Cluster: a value, created when it is needed
//	                 ├─► Start(aware)     runs all; engages each logical cluster, unless NoEngage
//	                 └─► Gate(reconciler) only reconciles logical clusters that a ring assigns to this replica
//
// A cluster reads from the watches, and writes through the front-proxy, by one transport for all clusters.
package mcprovider
