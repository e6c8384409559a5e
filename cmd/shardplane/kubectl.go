package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/plugin"
)

const pluginName = "kubectl-shardplane"

func newKubectlCommand(use string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use,
		Short:   "List shards and workspaces, and switch between workspaces",
		GroupID: groupClients,
		Long: `Shows the shards and the tree of workspaces, shows why a workspace is not ready, and
changes the current workspace of the kubeconfig. The same commands are available as a
kubectl plugin if this program is in PATH under the name kubectl-shardplane.

A workspace is specified by its path, e.g. root:team:demo, by its name below the
current workspace, or by .. for the parent.`,
	}
	cmd.AddCommand(newTreeCommand(), newShardsCommand(), newDescribeCommand(), newUseCommand())
	return cmd
}

// addPluginFlags adds flags of a plugin command and those of connections.
func addPluginFlags(cmd *cobra.Command, options *plugin.Options, own func(fs *pflag.FlagSet)) {
	var flags cliflag.NamedFlagSets
	if own != nil {
		own(flags.FlagSet(strings.ToUpper(cmd.Name()[:1]) + cmd.Name()[1:]))
	}
	options.AddFlags(flags.FlagSet("Connection"))
	addFlags(cmd, flags)
}

func argument(args []string) string { return strings.Join(args, "") }

func newTreeCommand() *cobra.Command {
	tree := plugin.Tree{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:   "tree [WORKSPACE]",
		Short: "Show a tree of workspaces with their shards and conditions",
		Example: `  # Show all accessible workspaces, and update the output after each change
  kubectl shardplane tree root --watch`,
		Args: cobra.MaximumNArgs(1),
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			tree.Path = argument(args)
			return tree.Run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	addPluginFlags(cmd, tree.Options, func(fs *pflag.FlagSet) {
		tree.Watch.AddFlags(fs)
		fs.IntVar(&tree.Depth, "depth", 0, "number of levels to show; 0 means all")
	})
	return cmd
}

func newShardsCommand() *cobra.Command {
	shards := plugin.Shards{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:   "shards",
		Short: "Show the shards with their health and numbers of tenants and workspaces",
		Long: `Shows the shards. The health of a shard is

  NotReady   its condition Ready is False, or all requests for its workspaces failed
  Ready      otherwise, if its condition Ready is True or a workspace could be listed
  Unknown    otherwise

Details follow, e.g. Unreachable, HeartbeatMissing, Full, SchedulingDisabled or Deleting.
A tenant is a child workspace of root. Workspaces are counted if they are accessible.`,
		Args: cobra.NoArgs,
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return shards.Run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	addPluginFlags(cmd, shards.Options, shards.Watch.AddFlags)
	return cmd
}

func newDescribeCommand() *cobra.Command {
	describe := plugin.Describe{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:     "describe WORKSPACE",
		Aliases: []string{"where"},
		Short:   "Show the shard, the conditions and the Events of a workspace",
		Args:    cobra.ExactArgs(1),
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			describe.Path = argument(args)
			return describe.Run(ctx, cmd.OutOrStdout())
		}),
	}
	addPluginFlags(cmd, describe.Options, nil)
	return cmd
}

func newUseCommand() *cobra.Command {
	use := plugin.Use{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:     "use [WORKSPACE]",
		Aliases: []string{"open"},
		Short:   "Show or change the current workspace of the kubeconfig",
		Long: `Changes the current workspace: writes the context workspace.kcp.io/current to the
kubeconfig, with the user of the current context, and saves the latter as
workspace.kcp.io/previous, like kubectl ws. ~ is the home workspace of the user, and -
the previous workspace. Without a workspace, it shows the current one.`,
		Example: `  kubectl shardplane use root:team:demo
  kubectl shardplane use ..
  kubectl shardplane use -`,
		Args: cobra.MaximumNArgs(1),
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			use.Path = argument(args)
			return use.Run(ctx, cmd.OutOrStdout())
		}),
	}
	addPluginFlags(cmd, use.Options, nil)
	return cmd
}
