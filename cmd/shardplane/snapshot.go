package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/etcd/snapshot"
	"github.com/shardplane/shardplane/pkg/shard"
)

func newSnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshot",
		Short:   "Save and restore the data of a shard or cache server",
		GroupID: groupData,
		Long: `Saves what the embedded etcd of a shard or a cache server holds, and restores it.
A snapshot has the secrets of all logical clusters of the shard: keep it as you
keep those. An external etcd is saved with its own tools.`,
	}
	cmd.AddCommand(newSaveCommand(), newRestoreCommand())
	return cmd
}

func newSaveCommand() *cobra.Command {
	var source snapshot.Source
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the data of a running server, or of a stopped one, to a file",
		Long: `Saves a snapshot to a file, which is there when all of it was read, checked and
synced to disk. A server that runs goes on meanwhile.`,
		Example: `  # Of a running shard, with the kubeconfig that shardplane dev makes
  shardplane snapshot save --kubeconfig .kcp-0/admin.kubeconfig root.snapshot

  # Of a shard that is stopped
  shardplane snapshot save --data-dir root-data root.snapshot`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := source.Validate(); err != nil {
				return invalid(err)
			}
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			return failed(snapshot.Save(ctx, source, args[0], overwrite, cmd.ErrOrStderr()))
		},
	}
	var flags cliflag.NamedFlagSets
	fs := flags.FlagSet("Snapshot")
	fs.StringVar(&source.Kubeconfig, "kubeconfig", "", "kubeconfig for the running shard or cache server itself, not for a front-proxy, as a member of system:masters")
	fs.StringVar(&source.Context, "context", "", "context of --kubeconfig; its current one by default")
	fs.StringVar(&source.DataDir, "data-dir", "", "the --data-dir of a server that does not run")
	fs.BoolVar(&overwrite, "overwrite", false, "replace the file if it exists")
	addFlags(cmd, flags)
	return cmd
}

func newRestoreCommand() *cobra.Command {
	var config etcd.RestoreConfig
	var name string
	var cache bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the data directory of a server of a snapshot",
		Long: `Makes a data directory of a snapshot, after checking that it is whole and the data
of the server that is named. A directory that has data is refused.

The resourceVersions of the restored data go on above all that clients have seen,
so that they notice and read everything again; see docs/operations.md.`,
		Example: `  # Of the root shard: stop it, move its data away, restore, start it again
  shardplane snapshot restore --name root --data-dir root-data root.snapshot

  # Of a cache server
  shardplane snapshot restore --cache-server --data-dir cache-data cache.snapshot`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			config.File = args[0]
			switch {
			case config.DataDir == "":
				return invalid(errors.New("--data-dir is required: the --data-dir that the server is started with"))
			case (name == "") == !cache:
				return invalid(errors.New("say whose data it is to be: --name for that of a shard, or --cache-server"))
			case cache:
				config.Want = etcd.Identity{Kind: etcd.KindCacheServer}
				config.Prefix = cacheserver.NewOptions().Etcd.Prefix
			default:
				config.Want = etcd.Identity{Kind: etcd.KindShard, Name: name}
				config.Prefix = shard.NewOptions().Etcd.Prefix
			}
			ctx, _, done := untilSignal(cmd.Context())
			defer done()
			restored, err := etcd.Restore(ctx, config)
			if err != nil {
				return failed(err)
			}
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Restored %s into %s: revision %d, which goes on at %d\n", config.File, config.DataDir, restored.From, restored.To)
			return nil
		},
	}
	var flags cliflag.NamedFlagSets
	fs := flags.FlagSet("Snapshot")
	fs.StringVar(&name, "name", "", "name of the shard whose data it is")
	fs.BoolVar(&cache, "cache-server", false, "it is the data of a cache server")
	fs.StringVar(&config.DataDir, "data-dir", "", "data directory of the server that is to have the data; its subdirectory etcd must be missing or empty")
	addFlags(cmd, flags)
	return cmd
}
