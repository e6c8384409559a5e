// Package plugin is kubectl's plugin for Shardplane. It shows the shards and the tree of workspaces, explains why a
// workspace is not ready, and makes a workspace the current one of a kubeconfig. It uses the front-proxy like any
// client, and shows only objects that the user has access to.
//
//	walk   lists the workspaces below one, errors, and Events of workspaces that are not Ready
//	use    writes the kubeconfig, with the same contexts as kcp's plugin
package plugin
