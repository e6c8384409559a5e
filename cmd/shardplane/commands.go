package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/etcd"
)

// signalInterval is the period in which signals count as one, because make and others signal a process and its group.
const signalInterval = 250 * time.Millisecond

// untilSignal returns a context that ends with the first stop signal, and a channel that the second one closes.
func untilSignal(parent context.Context) (ctx context.Context, force <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(parent)
	forced := make(chan struct{})
	signals := make(chan os.Signal, 2)
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // e.g. by nohup
		stops = append(stops, syscall.SIGHUP)
	}
	signal.Notify(signals, stops...)

	// If the reader of the output exits first, e.g. tee at Ctrl-C, SIGPIPE must not interrupt the shutdown.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGPIPE)

	go func() {
		var first time.Time
		for range signals {
			switch {
			case first.IsZero():
				first = time.Now()
				cancel()
			case time.Since(first) > signalInterval:
				close(forced)
				return
			}
		}
	}()
	return ctx, forced, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}

// failure is an error of a command after its flags and arguments were accepted.
type failure struct {
	error
	code int
}

func (f *failure) Unwrap() error { return f.error }

// exitFailure is the exit code of errors that may be temporary.
const exitFailure = 1

// failed marks err as an error of a command, with the exit code that determines whether the supervisor restarts a server.
// nil stays nil, and so does the code of an error that has one.
func failed(err error) error {
	switch {
	case err == nil, errors.As(err, new(*failure)):
		return err
	case errors.Is(err, etcd.ErrDataDirFormat), errors.Is(err, etcd.ErrDataDirCorrupt), errors.Is(err, etcd.ErrIdentity):
		return &failure{error: err, code: supervise.ExitData}
	default:
		return &failure{error: err, code: exitFailure}
	}
}

// stoppable returns the function of a command whose context ends at a stop signal.
func stoppable(run func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, _, done := untilSignal(cmd.Context())
		defer done()
		return failed(run(ctx, cmd, args))
	}
}

// invalid marks err as an error of the flags; nil stays nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &failure{error: err, code: supervise.ExitUsage}
}

const (
	defaultHelpWidth = 100
	maxHelpWidth     = 120
)

// addFlags adds flags in sections, which the help shows.
func addFlags(cmd *cobra.Command, sections cliflag.NamedFlagSets) {
	sections.FlagSet("Other").BoolP("help", "h", false, "help for "+cmd.Name())
	for _, section := range sections.FlagSets {
		cmd.Flags().AddFlagSet(section)
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		_, _ = fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
		if cmd.HasExample() {
			_, _ = fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
		}
		width := helpWidth(cmd.Root().OutOrStdout()) // the output is a buffer while the help is rendered
		for _, name := range sections.Order {
			_, _ = fmt.Fprintf(out, "\n%s:\n%s", name, sections.FlagSets[name].FlagUsagesWrapped(width))
		}
		return nil
	})
}

func helpWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return defaultHelpWidth
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		return defaultHelpWidth
	}
	return min(width, maxHelpWidth)
}

const (
	groupDev     = "dev"
	groupServers = "servers"
	groupClients = "clients"
	groupData    = "data"
)
