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
		Long: `Runs a cache server, to which every shard copies the objects that other shards
need to know, and from which they read those of all the others below
/services/cache/shards/<shard>/clusters/<name>. Only shards, system:masters and
the group shardplane:cache:readers may use it, with client certificates.

Its data can be lost without harm: the shards copy everything again.`,
		Example: `  # With the certificates that shardplane dev makes. Each shard reaches it by its
  # --cache-kubeconfig, such as .kcp-0/cache.kubeconfig
  shardplane cache-server --data-dir cache-data --secure-port 8012 \
    --tls-cert-file .kcp/apiserver.crt --tls-private-key-file .kcp/apiserver.key \
    --client-ca-file .kcp/client-ca.crt`,
	}, options.Flags(), options.Complete, cacheserver.New)
}
