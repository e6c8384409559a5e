package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/etcd"
)

// sameStop is the period in which signals count as one, because make and others signal a process and its group.
const sameStop = 250 * time.Millisecond

// untilSignal returns a context that is done after the first stop signal, and a channel that is closed by the second
// one. done stops the signal handling.
func untilSignal(parent context.Context) (ctx context.Context, force <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(parent)
	forced := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stopSignals()...)

	// If the reader of the output exits first, e.g. tee at Ctrl-C, SIGPIPE must not interrupt the shutdown.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGPIPE)

	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var first time.Time
		for {
			select {
			case <-signals:
			case <-quit:
				return
			}
			switch {
			case first.IsZero():
				first = time.Now()
				cancel()
			case time.Since(first) > sameStop:
				close(forced)
				return
			}
		}
	}()
	return ctx, forced, func() {
		signal.Stop(signals)
		close(quit)
		<-ended
		cancel()
	}
}

// stopSignals returns the signals that stop the process. SIGHUP is not one of them if it is ignored, e.g. by nohup.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
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
