// Command shardplane contains all programs of Shardplane: the servers (shard, front-proxy, cache-server), dev, and a
// plugin for kubectl. The command dev runs a whole cluster on one machine. The plugin also runs under the name
// kubectl-shardplane.
//
// The exit code is 0 after an orderly shutdown, 64 for wrong flags or arguments, 65 if the data directory of a server
// cannot be used, and 1 for other errors. The help of a command may specify other codes. The last line on standard
// error contains the reason.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/dev"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/frontproxy"
	"github.com/shardplane/shardplane/pkg/plaintext"
	"github.com/shardplane/shardplane/pkg/shard"
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

// run runs the command for the program name in args and returns its exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := newCommand(args[0]) //nolint:contextcheck // ExecuteContextC passes ctx to the commands
	root.SetArgs(args[1:])
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	klog.Flush()
	if err == nil {
		return 0
	}
	var failed *failure
	if !errors.As(err, &failed) {
		// An error before the command starts is a usage error. Suggestions are on separate lines.
		reason := strings.Join(strings.Fields(err.Error()), " ")
		_, _ = plaintext.Fprintf(errOut, "%s: %s (see %s --help)\n", cmd.CommandPath(), reason, cmd.CommandPath())
		return supervise.ExitUsage
	}
	for line := range strings.Lines(strings.TrimSpace(err.Error())) { // one per reason
		_, _ = plaintext.Fprintf(errOut, "%s: %s\n", cmd.CommandPath(), strings.TrimRight(line, "\r\n"))
	}
	return failed.code
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "shardplane",
		Short: "Kubernetes-style API server for many logical clusters",
		Long: `Shardplane serves many logical clusters. Each is an isolated Kubernetes-style API.
Shards store the data, a front-proxy routes requests to them, and a cache server
replicates the objects that all shards need.`,
		Example: `  # Run a development cluster with two shards
  shardplane dev

  # Show the flags of a server
  shardplane shard --help`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(
		&cobra.Group{ID: groupDev, Title: "Development:"},
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

func newCommand(program string) *cobra.Command {
	if strings.TrimSuffix(filepath.Base(program), ".exe") != pluginName {
		return newRootCommand()
	}
	cmd := newKubectlCommand(pluginName)
	cmd.GroupID = ""
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl shardplane"}
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.InitDefaultHelpCmd()
	cmd.InitDefaultCompletionCmd()
	return cmd
}

// orphanTimeout limits the shutdown of a server whose supervisor has died.
const orphanTimeout = 5 * time.Second

var errKilled = errors.New("killed during shutdown")

// serve makes cmd run the server that build constructs from completed options, until a signal stops it.
func serve[C interface {
	Validate() error
	Warnings() []string
}, S interface {
	Run(ctx context.Context) error
}](
	cmd *cobra.Command, flags cliflag.NamedFlagSets, complete func() C, build func(context.Context, C) (S, error),
) *cobra.Command {
	logging := logsapi.NewLoggingConfiguration()
	gates := featuregate.NewFeatureGate()
	utilruntime.Must(logsapi.AddFeatureGates(gates)) // cannot fail, because the gates are new
	addLoggingFlags(logging, flags.FlagSet("Logging"))
	addFlags(cmd, flags)
	cmd.GroupID = groupServers
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		completed := complete()
		if err := completed.Validate(); err != nil {
			return invalid(err)
		}
		if err := logsapi.ValidateAndApply(logging, gates); err != nil {
			return invalid(fmt.Errorf("logging: %w", err))
		}
		for _, warning := range completed.Warnings() {
			klog.Warning(warning)
		}
		setProcessors()
		paceCollector()
		ctx, force, done := untilSignal(cmd.Context())
		defer done()
		return failed(runUntilForced(ctx, force, supervise.Lifeline(), func(ctx context.Context) error {
			s, err := build(ctx, completed)
			if err != nil {
				return err
			}
			return s.Run(ctx)
		}))
	}
	return cmd
}

// runUntilForced runs a server until ctx is done or its supervisor dies. It does not wait for the shutdown if it is
// forced, or if it takes too long after the supervisor has died.
func runUntilForced(ctx context.Context, force, lifeline <-chan struct{}, run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- run(ctx) }() // the process exits soon if it is not awaited
	var timeout <-chan time.Time
	for {
		select {
		case err := <-result:
			return err
		case <-force:
			return errKilled
		case <-timeout:
			return errKilled
		case <-lifeline:
			cancel()
			lifeline, timeout = nil, time.After(orphanTimeout)
		}
	}
}

// addLoggingFlags adds the common logging flags of Kubernetes components.
func addLoggingFlags(c *logsapi.LoggingConfiguration, fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	logsapi.AddFlags(c, all)
	for _, name := range []string{"logging-format", "v"} {
		fs.AddFlag(all.Lookup(name))
	}
}

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

func newCacheServerCommand() *cobra.Command {
	options := cacheserver.NewOptions()
	return serve(&cobra.Command{
		Use:   "cache-server",
		Short: "Run a cache server with the replicas of all shards",
		Long: `Runs a cache server. Each shard replicates objects that other shards need to it, and
reads the objects of other shards at /services/cache/shards/<shard>/clusters/<name>.
Only shards, system:masters and the group shardplane:cache:readers have access, with
client certificates.

A loss of its data is harmless, because the shards replicate all objects again.`,
		Example: `  # With the certificates of shardplane dev. Shards connect to it with
  # --cache-kubeconfig, e.g. .kcp-0/cache.kubeconfig
  shardplane cache-server --data-dir cache-data --secure-port 8012 \
    --tls-cert-file .kcp/apiserver.crt --tls-private-key-file .kcp/apiserver.key \
    --client-ca-file .kcp/client-ca.crt`,
	}, options.Flags(), options.Complete, cacheserver.NewCacheServer)
}

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
			return failed(dev.RunCluster(ctx, completed, cmd.OutOrStdout(), force))
		},
	}
	addFlags(cmd, options.Flags())
	return cmd
}
