// Package plugin is kubectl's plugin for Shardplane: it shows the shards and the tree of
// workspaces as people ask about them, says why one waits, and makes one the current workspace
// of a kubeconfig. It is a client like any other, through the front-proxy, and shows what its
// user may see.
//
//	walk      the workspaces below one, and who could not be asked
//	waiting   what conditions and Events say of one that is not Ready
//	use       writes the kubeconfig, with the names of contexts that kcp's plugin has
package plugin
