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
		Short:   "Run a development cluster on this machine",
		Long: `Runs shards, a front-proxy and a cache server on this machine. Each component is a
separate process. Certificates and kubeconfigs are created.

All files are in .kcp and .kcp-* of the working directory, and the next start uses
them again. The file .kcp/ready-to-test exists while all components are ready.
A component that exits is restarted. Ctrl-C stops the components in order; a
second Ctrl-C kills them.`,
		Example: `  # Two shards, with all files in the current directory
  shardplane dev

  # Three shards with files in another directory, next to a running cluster
  shardplane dev --shards 3 --work-dir /tmp/other --front-proxy-port 7443 --shard-port 7444 --cache-server-port 9012

  # Show the logs of all components
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
			return failed(dev.NewDevCluster(completed, cmd.OutOrStdout(), force).Run(ctx))
		},
	}
	addFlags(cmd, options.Flags())
	return cmd
}
