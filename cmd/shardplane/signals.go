package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameStop is how long after a signal another one is taken for the same wish:
// timeout(1), make and process managers signal a process and its group.
const sameStop = 250 * time.Millisecond

// untilSignal returns a context that ends at the first signal to stop, and a
// channel that is closed at the second. done gives the signals back.
func untilSignal(parent context.Context) (ctx context.Context, force <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(parent)
	forced := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stopSignals()...)

	// A reader of our output that ends before us, such as tee at Ctrl-C, must
	// not end us in the middle of an ordered stop: writing then just fails.
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

// stopSignals are the signals that stop us. The end of the terminal is one,
// unless we were started to survive that, as by nohup.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
