// Package controllers is the catalogue of what a shard's controllers are and
// what they need. Each controller has its own package below; they know nothing
// of each other.
//
//	bootstrap           root and system:admin exist
//	shardregistration   this shard's Shard object in root is right
//	aggregation         aggregated cluster roles have the rules of those they select
//	namespace           namespaces that are deleted are emptied
//	serviceaccount      namespaces have a default service account, and secrets for
//	                    tokens have a token
//	resourcequota       the status of quotas says what is used
//	policytypes         the status of admission policies says which expressions
//	                    do not fit the types
//	logicalcluster      logical clusters become Ready, and, with a queue of its
//	                    own, are emptied when deleted
//	workspace           workspaces get a logical cluster on some shard
//	replication         what other shards must know is pushed to the cache server
package controllers
