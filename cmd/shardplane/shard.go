package main

import (
	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/pkg/shard"
)

func newShardCommand() *cobra.Command {
	options := shard.NewOptions()
	return serve(&cobra.Command{
		Use:   "shard",
		Short: "Run a shard, which stores logical clusters and serves their APIs",
		Long: `Runs a shard, which stores logical clusters in etcd. It serves each of them at
/clusters/<name>, and all of them at /clusters/*.

The shard named root stores the logical cluster root, in which other shards register
themselves. Without --etcd-servers, etcd runs inside the process.

Warnings at startup name missing parts of the installation.`,
		Example: `  # The root shard, with the certificates and kubeconfigs of shardplane dev
  shardplane shard --data-dir root-data --secure-port 6444 \
    --tls-cert-file .kcp/apiserver.crt --tls-private-key-file .kcp/apiserver.key \
    --client-ca-file .kcp/client-ca.crt --requestheader-client-ca-file .kcp/requestheader-ca.crt \
    --shard-client-cert-file .kcp/shard-client-root.crt --shard-client-key-file .kcp/shard-client-root.key \
    --shard-ca-file .kcp/serving-ca.crt --external-url https://127.0.0.1:6443 \
    --virtual-workspace-url https://127.0.0.1:6443/shards/root \
    --cache-kubeconfig .kcp-0/cache.kubeconfig --root-ca-file .kcp/serving-ca.crt \
    --service-account-signing-key-file .kcp/service-account.key

  # Another shard, with its own name, port, data and certificate, and a kubeconfig for root
  shardplane shard --name shard-1 --data-dir shard-1-data --secure-port 6445 \
    --root-kubeconfig .kcp-1/root-shard.kubeconfig \
    --tls-cert-file .kcp/apiserver.crt --tls-private-key-file .kcp/apiserver.key \
    --client-ca-file .kcp/client-ca.crt --requestheader-client-ca-file .kcp/requestheader-ca.crt \
    --shard-client-cert-file .kcp/shard-client-shard-1.crt --shard-client-key-file .kcp/shard-client-shard-1.key \
    --shard-ca-file .kcp/serving-ca.crt --external-url https://127.0.0.1:6443 \
    --virtual-workspace-url https://127.0.0.1:6443/shards/shard-1 \
    --cache-kubeconfig .kcp-1/cache.kubeconfig --root-ca-file .kcp/serving-ca.crt \
    --service-account-signing-key-file .kcp/service-account.key`,
	}, options.Flags(), options.Complete, shard.NewShard)
}
