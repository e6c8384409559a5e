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

// Config configures Run. Zero fields have defaults.
type Config struct {
	// Backoff determines the delay before a restart.
	Backoff Backoff
	// StopTimeout is how long a component may take to stop before it is killed; 5 s by default.
	StopTimeout time.Duration
	// StartTimeout is the maximum time until each component was ready once; 2 min by default.
	StartTimeout time.Duration
	// PollInterval is the first interval between readiness checks; 25 ms by default.
	PollInterval time.Duration
	// SlowAfter is the time after which a component that is not ready is reported as Waiting; 5 s by default.
	SlowAfter time.Duration
	// MaxStartFailures is how often a component may exit before it was ready once; 4 by default.
	MaxStartFailures int
	// Notify receives the events, one at a time. Optional.
	Notify func(Event)
	// AllReady is called once, when every component has been ready. Its error ends Run. Optional.
	AllReady func() error
	// Force kills all components when it is closed. Optional.
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

// Backoff determines the delay before a component is restarted. It doubles after each exit, up to a maximum, and is
// reset after the component was healthy for a while. Zero fields have defaults.
type Backoff struct {
	// Initial is the first delay; 0.5 s by default.
	Initial time.Duration
	// Max is the maximum delay; 30 s by default.
	Max time.Duration
	// HealthyAfter is how long a component must have been ready to reset the delay; 1 min by default.
	HealthyAfter time.Duration
}

func (b Backoff) withDefaults() Backoff {
	b.Initial = cmp.Or(b.Initial, 500*time.Millisecond)
	b.Max = cmp.Or(b.Max, 30*time.Second)
	b.HealthyAfter = cmp.Or(b.HealthyAfter, time.Minute)
	return b
}

type pauses struct {
	Backoff
	next time.Duration
}

// after returns the delay after the exit of a component that had been ready for the given time.
func (p *pauses) after(healthy time.Duration) time.Duration {
	if p.next == 0 || healthy >= p.HealthyAfter {
		p.next = p.Initial
	}
	pause := min(p.next, p.Max)
	p.next = min(2*pause, p.Max)
	return pause
}
