// Command shardplane contains all programs of Shardplane: the servers (shard, front-proxy, cache-server), dev, which runs
// a whole cluster on one machine, and a plugin for kubectl, which also runs under the name kubectl-shardplane.
//
// It exits with 0 after an orderly shutdown, 64 for wrong flags or arguments, 65 if the data directory of a server cannot
// be used, and 1 for other errors, except for commands whose help specifies otherwise. The last line on standard error
// contains the reason.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/plaintext"
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
