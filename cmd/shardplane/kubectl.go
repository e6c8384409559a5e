package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/plugin"
)

// pluginName is the name under which kubectl finds this program: kubectl shardplane.
const pluginName = "kubectl-shardplane"

// newKubectlCommand returns what kubectl's plugin is.
func newKubectlCommand(use string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use,
		Short:   "See shards and workspaces, and move between workspaces",
		GroupID: groupClients,
		Long: `Shows the shards and the tree of workspaces, says why a workspace waits, and makes
one the current workspace of the kubeconfig, as kubectl's plugin does for which this
program only has to be found in PATH under the name kubectl-shardplane.

A workspace is named by its path, such as root:team:demo, by its name below the
current one, or by .. for the parent of that.`,
	}
	cmd.AddCommand(newTreeCommand(), newShardsCommand(), newDescribeCommand(), newUseCommand())
	return cmd
}

// addPluginFlags gives a command of the plugin flags of its own and those about connections.
func addPluginFlags(cmd *cobra.Command, options *plugin.Options, own func(fs *pflag.FlagSet)) {
	var flags cliflag.NamedFlagSets
	if own != nil {
		own(flags.FlagSet(strings.ToUpper(cmd.Name()[:1]) + cmd.Name()[1:]))
	}
	options.AddFlags(flags.FlagSet("Connection"))
	addFlags(cmd, flags)
}

// argument returns the only argument, or "".
func argument(args []string) string { return strings.Join(args, "") }

func newTreeCommand() *cobra.Command {
	tree := plugin.Tree{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:   "tree [WORKSPACE]",
		Short: "Show the workspaces below one, where they are, and what they wait for",
		Example: `  # All that you may see, again whenever something changes
  kubectl shardplane tree root --watch`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			tree.Path = argument(args)
			return failed(tree.Run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	addPluginFlags(cmd, tree.Options, func(fs *pflag.FlagSet) {
		tree.Watch.AddFlags(fs)
		fs.IntVar(&tree.Depth, "depth", 0, "how many levels to show; 0 is all")
	})
	return cmd
}

func newShardsCommand() *cobra.Command {
	shards := plugin.Shards{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:   "shards",
		Short: "Show the shards, whether they answer, and how many tenants and workspaces they have",
		Long: `Shows the shards. A tenant is a workspace below root; workspaces are counted by
looking through all that you may see. A shard Answers if one of its workspaces could be
listed, is NotAnswering if that was tried and failed, and Unknown without any.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			return failed(shards.Run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	addPluginFlags(cmd, shards.Options, shards.Watch.AddFlags)
	return cmd
}

func newDescribeCommand() *cobra.Command {
	describe := plugin.Describe{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:     "describe WORKSPACE",
		Aliases: []string{"where"},
		Short:   "Say where a workspace is, and what its conditions and Events tell",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			describe.Path = argument(args)
			return failed(describe.Run(ctx, cmd.OutOrStdout()))
		},
	}
	addPluginFlags(cmd, describe.Options, nil)
	return cmd
}

func newUseCommand() *cobra.Command {
	use := plugin.Use{Options: plugin.NewOptions()}
	cmd := &cobra.Command{
		Use:     "use [WORKSPACE]",
		Aliases: []string{"open"},
		Short:   "Make a workspace the current one of the kubeconfig, or say which is",
		Long: `Makes a workspace the current one: writes the context workspace.kcp.io/current into the
kubeconfig, with the user of the current context, and keeps that as
workspace.kcp.io/previous, as kubectl ws does. ~ is your home workspace, and - the
workspace before. Without a workspace it says which is the current one.`,
		Example: `  kubectl shardplane use root:team:demo
  kubectl shardplane use ..
  kubectl shardplane use -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			use.Path = argument(args)
			return failed(use.Run(ctx, cmd.OutOrStdout()))
		},
	}
	addPluginFlags(cmd, use.Options, nil)
	return cmd
}
