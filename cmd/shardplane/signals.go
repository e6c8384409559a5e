package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameStop is the period in which repeated signals count as one, because timeout(1), make and process managers signal a
// process and its group.
const sameStop = 250 * time.Millisecond

// untilSignal returns a context that is done after the first stop signal, and a channel that is closed by the second
// one. done stops the signal handling.
func untilSignal(parent context.Context) (ctx context.Context, force <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(parent)
	forced := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stopSignals()...)

	// If the reader of the output exits first, e.g. tee at Ctrl-C, SIGPIPE must not interrupt the shutdown. Writes then
	// fail.
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
