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
	"strings"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/dev/exitcode"
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

// failure is the error of a command that had begun.
type failure struct {
	error
	code int
}

func (f *failure) Unwrap() error { return f.error }

// failed marks err as the failure of a command that had begun; nil stays nil.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: exitcode.Of(err)}
}

// invalid marks err as the fault of the flags; nil stays nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: supervise.ExitUsage}
}
