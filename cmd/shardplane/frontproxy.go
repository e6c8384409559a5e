package main

import (
	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/pkg/frontproxy"
)

func newFrontProxyCommand() *cobra.Command {
	options := frontproxy.NewOptions()
	return serve(&cobra.Command{
		Use:   "front-proxy",
		Short: "Run a front-proxy for the logical clusters of all shards",
		Long: `Runs a front-proxy. It authenticates users, resolves the name or path of the logical
cluster to its shard, and forwards the request with the user in its headers.

It lists the shards at the root shard, and watches the logical clusters of all shards.

Warnings at startup name missing parts of the installation.`,
		Example: `  # With the certificates and kubeconfigs of shardplane dev
  shardplane front-proxy --secure-port 6443 \
    --tls-cert-file .kcp/apiserver.crt --tls-private-key-file .kcp/apiserver.key \
    --client-ca-file .kcp/client-ca.crt --root-kubeconfig .kcp/front-proxy.kubeconfig \
    --shard-client-cert-file .kcp/front-proxy-client.crt --shard-client-key-file .kcp/front-proxy-client.key \
    --proxy-client-cert-file .kcp/front-proxy-requestheader.crt --proxy-client-key-file .kcp/front-proxy-requestheader.key \
    --shard-ca-file .kcp/serving-ca.crt --service-account-key-file .kcp/service-account.key`,
	}, options.Flags(), options.Complete, frontproxy.NewFrontProxy)
}
