// Command shardplane is all of Shardplane in one program: the servers (shard,
// front-proxy, cache-server), dev, which runs a whole cluster of them on one
// machine, and, also under the name kubectl-shardplane, a plugin for kubectl.
//
// It exits with 0 after an ordered stop, 64 when flags or arguments are wrong, 65
// when a server's data directory cannot be used, and 1 when anything else fails, but
// for commands whose help says otherwise; the last line on standard error says what.
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

// run runs the program that the first of args names, and returns its exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := newCommand(args[0]) //nolint:contextcheck // ExecuteContextC hands ctx to the commands
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
		// What fails before a command begins is the fault of how it was called.
		// Suggestions come on lines of their own.
		reason := strings.Join(strings.Fields(err.Error()), " ")
		_, _ = plaintext.Fprintf(errOut, "%s: %s (see %s --help)\n", cmd.CommandPath(), reason, cmd.CommandPath())
		return supervise.ExitUsage
	}
	for line := range strings.Lines(strings.TrimSpace(err.Error())) { // one for each reason
		_, _ = plaintext.Fprintf(errOut, "%s: %s\n", cmd.CommandPath(), strings.TrimRight(line, "\r\n"))
	}
	return failed.code
}

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

// newCommand returns the command that a program of this name is.
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
