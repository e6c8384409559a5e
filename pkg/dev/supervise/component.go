package supervise

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"
)

// Exit codes of components for which a restart is useless. Run fails immediately if the component was never
// ready. They are those of sysexits.h, because 2, a common code for wrong flags, is the code of Go crashes.
const (
	// ExitUsage is the code for invalid flags.
	ExitUsage = 64
	// ExitData is the code for unusable data.
	ExitData = 65
)

// Component is one process to supervise.
type Component struct {
	// Name is the name of the component in events.
	Name string
	// Path and Args are the program and its arguments without the program's name.
	Path string
	Args []string
	// Output receives the output of the process, including standard error.
	Output io.Writer
	// Ready returns nil if the process is ready, otherwise the reason why it is not.
	Ready func(context.Context) error
	// Stage orders the shutdown: components of a higher stage are stopped before those of a lower one.
	Stage int
}

// Config configures Run.
type Config struct {
	// StartTimeout is the maximum time until each component was ready once.
	StartTimeout time.Duration
	// Notify receives the events, one at a time.
	Notify func(Event)
	// AllReady is called once, when every component has been ready. Its error ends Run.
	AllReady func() error
	// Force kills all components when it is closed. It may be nil.
	Force <-chan struct{}

	// Only tests set the following fields, see withDefaults.

	// firstPause is the first delay before a restart.
	firstPause time.Duration
	// stopTimeout is how long a component may take to stop before it is killed.
	stopTimeout time.Duration
	// slowAfter is the time after which a component that is not ready is reported as Waiting.
	slowAfter time.Duration
}

func (c Config) withDefaults() Config {
	c.firstPause = cmp.Or(c.firstPause, 500*time.Millisecond)
	c.stopTimeout = cmp.Or(c.stopTimeout, 5*time.Second)
	c.slowAfter = cmp.Or(c.slowAfter, 5*time.Second)
	return c
}

// EventKind is the kind of an Event.
type EventKind int

// The kinds of events.
const (
	// Starting is sent when the process is being started.
	Starting EventKind = iota
	// Waiting is sent if the process has not been ready for a while; Err is the reason.
	Waiting
	// Ready is sent when the process is ready, Took after its start.
	Ready
	// Exited is sent if the process exited with Err. It is restarted after Delay.
	Exited
	// Stopping is sent when the process is being stopped.
	Stopping
	// Stopped is sent when the process was stopped.
	Stopped
	// Killed is sent if the process did not stop in time and was killed.
	Killed
)

// Event is a change of a component's state.
type Event struct {
	Component string
	Kind      EventKind
	// Restart is true if the component was started before.
	Restart bool
	// Err is the reason of Waiting and Exited.
	Err error
	// Took is the time until Ready, Delay the time until the restart after Exited.
	Took, Delay time.Duration
}

// StartError is returned if a component did not start.
type StartError struct {
	Component string
	Err       error
}

// Error implements error.
func (e *StartError) Error() string {
	return fmt.Sprintf("%s did not start: %v", e.Component, e.Err)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }
