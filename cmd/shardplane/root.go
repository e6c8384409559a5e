package main

import (
	"github.com/spf13/cobra"
)

const (
	groupDev     = "dev"
	groupServers = "servers"
	groupClients = "clients"
)

// newRootCommand returns the program's command with all others below it.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "shardplane",
		Short: "Many Kubernetes API servers in one, spread over shards",
		Long: `Shardplane serves many logical clusters, each a complete Kubernetes API of its
own, from few processes: shards keep the data, a front-proxy routes requests to
them, and a cache server shows every shard what all need to know.`,
		Example: `  # A cluster of two shards on this machine, for development
  shardplane dev

  # The flags of a server
  shardplane shard --help`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(
		&cobra.Group{ID: groupDev, Title: "Start here:"},
		&cobra.Group{ID: groupServers, Title: "Servers:"},
		&cobra.Group{ID: groupClients, Title: "Clients:"},
		&cobra.Group{ID: groupData, Title: "Data:"},
	)
	root.AddCommand(
		newDevCommand(),
		newShardCommand(),
		newFrontProxyCommand(),
		newCacheServerCommand(),
		newKubectlCommand("kubectl"),
		newSnapshotCommand(),
		newCacheCommand(),
		newVersionCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}
