package main

import (
	"fmt"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/cacheserver/verify"
)

// The exit codes of verify, in addition to 0 and the one for wrong flags.
const (
	exitDifferent   = 1
	exitNotCompared = 2
)

func newCacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cache",
		Short:   "Inspect the replicas on a cache server",
		GroupID: groupData,
	}
	cmd.AddCommand(newVerifyCommand())
	return cmd
}

func newVerifyCommand() *cobra.Command {
	var options verify.Options
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the replicas on a cache server with the objects of shards",
		Long: `Compares the replicated objects of shards with their replicas on the cache server,
field by field. It prints one line for each replica that is missing, different
(with the fields) or orphaned: shard, logical cluster, kind and name; and then the
numbers per kind. Differences are checked again for some seconds, because changes
may be about to be replicated. Nothing is modified.

It exits with 0 if all replicas are correct, with 1 if some are not, and with 2 if
the comparison is incomplete.`,
		Example: `  # Compare the cluster of shardplane dev
  shardplane cache verify --cache-kubeconfig .kcp-cache/cache.kubeconfig \
    --shard-kubeconfig .kcp-0/admin.kubeconfig --shard-kubeconfig .kcp-1/admin.kubeconfig`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return invalid(err)
			}
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			options.Progress = cmd.ErrOrStderr()
			differences, err := verify.Run(ctx, options, cmd.OutOrStdout())
			switch {
			case err != nil:
				return &failure{error: err, code: exitNotCompared}
			case differences > 0:
				return &failure{error: fmt.Errorf("%d replicas differ from their objects: running shards repair them", differences), code: exitDifferent}
			default:
				return nil
			}
		},
	}
	var flags cliflag.NamedFlagSets
	fs := flags.FlagSet("Servers")
	fs.StringVar(&options.Cache, "cache-kubeconfig", "", "kubeconfig of the cache server, as a member of system:masters or a shard")
	fs.StringArrayVar(&options.Shards, "shard-kubeconfig", nil, "kubeconfig of a shard itself, not of a front-proxy, as a member of system:masters; once for each shard")
	addFlags(cmd, flags)
	return cmd
}
