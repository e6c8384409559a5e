package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/cacheserver/verify"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/etcd/snapshot"
	"github.com/shardplane/shardplane/pkg/shard"
)

func newSnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshot",
		Short:   "Save and restore the data of a shard or cache server",
		GroupID: groupData,
		Long: `Saves and restores the embedded etcd of a shard or a cache server. A snapshot
contains the secrets of all logical clusters of the shard and must be protected
like these. An external etcd must be saved with its own tools.`,
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
		Long: `Saves a snapshot to a file, which is created after the snapshot has been read,
checked and synced to disk. A running server is not interrupted.`,
		Example: `  # Save a running shard, with the kubeconfig of shardplane dev
  shardplane snapshot save --kubeconfig .kcp-0/admin.kubeconfig root.snapshot

  # Save a stopped shard
  shardplane snapshot save --data-dir root-data root.snapshot`,
		Args: cobra.ExactArgs(1),
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			if err := source.Validate(); err != nil {
				return invalid(err)
			}
			return snapshot.Save(ctx, source, args[0], overwrite, cmd.ErrOrStderr())
		}),
	}
	var flags cliflag.NamedFlagSets
	fs := flags.FlagSet("Snapshot")
	fs.StringVar(&source.Kubeconfig, "kubeconfig", "", "kubeconfig for the running shard or cache server itself, not for a front-proxy, as a member of system:masters")
	fs.StringVar(&source.Context, "context", "", "context of --kubeconfig; the current context by default")
	fs.StringVar(&source.DataDir, "data-dir", "", "data directory of a stopped server")
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
		Short: "Restore a snapshot into the data directory of a server",
		Long: `Restores a snapshot into a data directory, after checking that it is complete and
belongs to the specified server. A directory with data is rejected.

After the restore, resourceVersions are higher than all that clients have observed.
Therefore, clients list all objects again; see docs/tasks/backup.md.`,
		Example: `  # Restore the root shard: stop it, move its data directory, restore, start it again
  shardplane snapshot restore --name root --data-dir root-data root.snapshot

  # Restore a cache server
  shardplane snapshot restore --cache-server --data-dir cache-data cache.snapshot`,
		Args: cobra.ExactArgs(1),
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			config.File = args[0]
			switch {
			case config.DataDir == "":
				return invalid(errors.New("--data-dir is required: use the --data-dir of the server"))
			case (name == "") == !cache:
				return invalid(errors.New("specify the server: --name for a shard, or --cache-server"))
			case cache:
				config.Want = etcd.Identity{Kind: etcd.KindCacheServer}
				config.Prefix = cacheserver.NewOptions().Etcd.Prefix
			default:
				config.Want = etcd.Identity{Kind: etcd.KindShard, Name: name}
				config.Prefix = shard.NewOptions().Etcd.Prefix
			}
			restored, err := etcd.Restore(ctx, config)
			if err == nil {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Restored %s into %s: revision %d, continuing at %d\n", config.File, config.DataDir, restored.From, restored.To)
			}
			return err
		}),
	}
	var flags cliflag.NamedFlagSets
	fs := flags.FlagSet("Snapshot")
	fs.StringVar(&name, "name", "", "name of the shard")
	fs.BoolVar(&cache, "cache-server", false, "restore a cache server instead of a shard")
	fs.StringVar(&config.DataDir, "data-dir", "", "data directory of the server; its subdirectory etcd must be missing or empty")
	addFlags(cmd, flags)
	return cmd
}

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
		RunE: stoppable(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return invalid(err)
			}
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
		}),
	}
	var flags cliflag.NamedFlagSets
	fs := flags.FlagSet("Servers")
	fs.StringVar(&options.Cache, "cache-kubeconfig", "", "kubeconfig of the cache server, as a member of system:masters or a shard")
	fs.StringArrayVar(&options.Shards, "shard-kubeconfig", nil, "kubeconfig of a shard itself, not of a front-proxy, as a member of system:masters; once for each shard")
	addFlags(cmd, flags)
	return cmd
}
