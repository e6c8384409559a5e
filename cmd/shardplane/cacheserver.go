package main

import (
	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/pkg/cacheserver"
)

func newCacheServerCommand() *cobra.Command {
	options := cacheserver.NewOptions()
	return serve(&cobra.Command{
		Use:   "cache-server",
		Short: "Run a cache server with the replicas of all shards",
		Long: `Runs a cache server. Each shard replicates objects that other shards need to it, and
reads the objects of other shards at /services/cache/shards/<shard>/clusters/<name>.
Only shards, system:masters and the group shardplane:cache:readers have access, with
client certificates.

A loss of its data is harmless, because the shards replicate all objects again.`,
		Example: `  # With the certificates of shardplane dev. Shards connect to it with
  # --cache-kubeconfig, e.g. .kcp-0/cache.kubeconfig
  shardplane cache-server --data-dir cache-data --secure-port 8012 \
    --tls-cert-file .kcp/apiserver.crt --tls-private-key-file .kcp/apiserver.key \
    --client-ca-file .kcp/client-ca.crt`,
	}, options.Flags(), options.Complete, cacheserver.NewCacheServer)
}
