package supervise

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"
)

// Exit codes with which a component says that starting it again cannot help.
// Run gives up at once where it was never ready. They are those of sysexits.h;
// 2, which many use for wrong flags, is the code of any crash of a Go program.
const (
	// ExitUsage says that its flags are wrong.
	ExitUsage = 64
	// ExitData says that its data cannot be used.
	ExitData = 65
)

// Component is one process to supervise.
type Component struct {
	// Name is what events call the component.
	Name string
	// Path and Args are the program and its arguments without the program's name.
	Path string
	Args []string
	// Output takes what the process writes, standard output and error alike.
	Output io.Writer
	// Ready reports whether the process serves: nil if so, otherwise what it is
	// waiting for.
	Ready func(context.Context) error
	// Stage orders the stop: components of a higher stage are stopped, and
	// waited for, before those of a lower one.
	Stage int
}

// Config says how to supervise. The zero value of a field stands for its
// default.
type Config struct {
	// Backoff is the pause before a restart.
	Backoff Backoff
	// StopTimeout is how long a component may take to stop before it is
	// killed; 5 s by default.
	StopTimeout time.Duration
	// StartTimeout is how long the components may take until each has been
	// ready once; 2 min by default.
	StartTimeout time.Duration
	// PollInterval is the first interval between two questions whether a
	// component is ready; 25 ms by default.
	PollInterval time.Duration
	// SlowAfter is when a component that is not ready is reported as waiting,
	// with the reason; 5 s by default.
	SlowAfter time.Duration
	// MaxStartFailures is how often a component may exit before it was ever
	// ready until Run gives up; 4 by default.
	MaxStartFailures int
	// Notify receives the events, one at a time. Optional.
	Notify func(Event)
	// AllReady is called once, when every component has been ready. Its error
	// ends Run. Optional.
	AllReady func() error
	// Force ends everything at once when it is closed. Optional.
	Force <-chan struct{}
}

func (c Config) withDefaults() Config {
	c.Backoff = c.Backoff.withDefaults()
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	c.StartTimeout = cmp.Or(c.StartTimeout, 2*time.Minute)
	c.PollInterval = cmp.Or(c.PollInterval, 25*time.Millisecond)
	c.SlowAfter = cmp.Or(c.SlowAfter, 5*time.Second)
	c.MaxStartFailures = cmp.Or(c.MaxStartFailures, 4)
	if c.Notify == nil {
		c.Notify = func(Event) {}
	}
	if c.AllReady == nil {
		c.AllReady = func() error { return nil }
	}
	return c
}

// EventKind is what happened to a component.
type EventKind int

// The events in the life of a component.
const (
	// Starting: its process is being started.
	Starting EventKind = iota
	// Waiting: its process is up and not ready for a while; Err says why.
	Waiting
	// Ready: it serves, Took after its process was started.
	Ready
	// Exited: its process ended with Err; it is started again after Delay.
	Exited
	// Stopping: it was asked to stop.
	Stopping
	// Stopped: its process has ended as asked.
	Stopped
	// Killed: its process did not end in time and was killed.
	Killed
)

// Event is a step in the life of a component.
type Event struct {
	Component string
	Kind      EventKind
	// Restart is set where the component was started before.
	Restart bool
	// Err is the reason of Waiting and Exited.
	Err error
	// Took is the time to ready.
	Took time.Duration
	// Delay is the pause until the restart.
	Delay time.Duration
}

// StartError says that a component could not be brought up.
type StartError struct {
	Component string
	Err       error
}

// Error names the component and the reason.
func (e *StartError) Error() string {
	return fmt.Sprintf("%s did not start: %v", e.Component, e.Err)
}

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }
