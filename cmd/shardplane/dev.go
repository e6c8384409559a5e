package main

import (
	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/pkg/dev"
)

func newDevCommand() *cobra.Command {
	options := dev.NewOptions()
	cmd := &cobra.Command{
		Use:     "dev",
		GroupID: groupDev,
		Short:   "Run a whole cluster on this machine for development",
		Long: `Runs shards, a front-proxy and a cache server on this machine, each as a process
of its own, with certificates and kubeconfigs made for them.

Everything is kept in .kcp and .kcp-* of the working directory, and found again
at the next start. The file .kcp/ready-to-test appears when everything serves.
Components that die are started again. Ctrl-C stops everything in order; a
second Ctrl-C kills it.`,
		Example: `  # Two shards, with all files in the current directory
  shardplane dev

  # Three shards with their files elsewhere, beside another cluster
  shardplane dev --shards 3 --work-dir /tmp/other --front-proxy-port 7443 --shard-port 7444 --cache-server-port 9012

  # See what everybody does
  shardplane dev --verbose -v 4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			completed, err := options.Complete()
			if err != nil {
				return invalid(err)
			}
			if err := completed.Validate(); err != nil {
				return invalid(err)
			}
			ctx, force, done := untilSignal(cmd.Context())
			defer done()
			return failed(dev.New(completed, cmd.OutOrStdout(), force).Run(ctx))
		},
	}
	addFlags(cmd, options.Flags())
	return cmd
}
