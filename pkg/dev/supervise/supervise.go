// Package supervise runs the processes of a development cluster. It starts them concurrently, waits until each is
// ready, restarts those that exit with an increasing delay, and stops them in the reverse order of their stages.
//
// No process outlives its supervisor:
//
//	shutdown            SIGTERM, and SIGKILL to the process group if a process does not end in time
//	supervisor killed   on Linux the kernel kills each process (parent-death signal);
//	                    on other systems each process detects the end of its lifeline (see Lifeline)
//
// Each process has its own process group, so that Ctrl-C in a terminal reaches only the supervisor.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

type supervisor struct {
	config  Config
	runners []*runner

	mu       sync.Mutex // serializes Notify
	failures chan error // the first one ends Run
}

// Run starts the components and supervises them until ctx ends. It returns when all processes have ended: nil after
// a shutdown, and a *StartError if a component does not start.
func Run(ctx context.Context, components []Component, config Config) error {
	s := &supervisor{config: config.withDefaults(), failures: make(chan error, len(components)+1)}
	for _, c := range components {
		r := &runner{component: c, sup: s, done: make(chan struct{}), wasReady: make(chan struct{})}
		s.runners = append(s.runners, r)
		r.notify(Event{Kind: Starting}) // not in the goroutine, to preserve the order
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		r.stop = stop
		go r.run(running)
	}
	err := s.wait(ctx)
	s.stop()
	return err
}

// wait returns when ctx ends or a component fails to start.
func (s *supervisor) wait(ctx context.Context) error {
	timeout := time.NewTimer(s.config.StartTimeout)
	defer timeout.Stop()
	for _, r := range s.runners {
		select {
		case <-r.wasReady:
		case err := <-s.failures:
			return err
		case <-timeout.C:
			return s.notReady()
		case <-ctx.Done():
			return nil
		}
	}
	if err := s.config.AllReady(); err != nil {
		return err
	}
	select {
	case err := <-s.failures:
		return err
	case <-ctx.Done():
		return nil
	}
}

// notReady returns an error with the components that are not ready, and the reasons.
func (s *supervisor) notReady() error {
	var names []string
	var errs []error
	for _, r := range s.runners {
		if !r.everReady() {
			names = append(names, r.component.Name)
			errs = append(errs, r.lastError())
		}
	}
	return &StartError{
		Component: strings.Join(names, ", "),
		Err:       fmt.Errorf("not ready after %s: %w", s.config.StartTimeout, errors.Join(errs...)),
	}
}

// stop stops all components, stage by stage from the highest. If forced, it stops the remaining ones together.
func (s *supervisor) stop() {
	byStage := slices.Clone(s.runners)
	slices.SortStableFunc(byStage, func(a, b *runner) int { return b.component.Stage - a.component.Stage })
	for len(byStage) > 0 {
		n := 1
		for n < len(byStage) && byStage[n].component.Stage == byStage[0].component.Stage {
			n++
		}
		stage := byStage[:n]
		byStage = byStage[n:]
		for _, r := range stage {
			r.stop()
		}
		for _, r := range stage {
			select {
			case <-r.done:
			case <-s.config.Force:
				for _, later := range byStage {
					later.stop()
				}
				byStage = nil
			}
		}
	}
	for _, r := range s.runners {
		<-r.done
	}
}

func (s *supervisor) notify(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.Notify(e)
}

const (
	firstPollInterval = 25 * time.Millisecond
	maxPollInterval   = 250 * time.Millisecond

	// maxStartFailures is how often a component may exit before it was ready once.
	maxStartFailures = 4
	// maxPause is the maximum delay before a restart. A component that was ready for healthyAfter restarts soon again.
	maxPause     = 30 * time.Second
	healthyAfter = time.Minute
	// waitingEvery is the minimum interval of Waiting events of a component.
	waitingEvery = 10 * time.Second
)

// runner keeps one component running until it is stopped.
type runner struct {
	component Component
	sup       *supervisor
	pauses    wait.Backoff

	stop     func()        // stops the component
	done     chan struct{} // closed when no process is running
	wasReady chan struct{} // closed when the component was ready for the first time

	err atomic.Pointer[error] // why the component is not ready
}

// run keeps the component running until ctx ends.
func (r *runner) run(ctx context.Context) {
	defer close(r.done)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for starts := 0; ctx.Err() == nil; starts++ {
		if starts > 0 {
			r.notify(Event{Kind: Starting, Restart: true})
		}
		healthy, err := r.runOnce(ctx, starts > 0)
		if ctx.Err() != nil {
			return
		}
		r.err.Store(&err)
		code := ExitCode(err)
		permanent := code == ExitUsage || code == ExitData || starts+1 >= maxStartFailures
		if permanent && !r.everReady() {
			r.sup.failures <- &StartError{Component: r.component.Name, Err: err}
			return
		}
		pause := r.pause(healthy)
		r.notify(Event{Kind: Exited, Err: err, Delay: pause})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// pause returns the delay before the next restart of a component that had been ready for the given time.
func (r *runner) pause(healthy time.Duration) time.Duration {
	if r.pauses.Duration == 0 || healthy >= healthyAfter {
		r.pauses = wait.Backoff{Duration: r.sup.config.firstPause, Factor: 2, Cap: maxPause, Steps: math.MaxInt}
	}
	return r.pauses.Step()
}

// runOnce runs one process until it ends. It returns how long it was ready, and its exit error.
func (r *runner) runOnce(ctx context.Context, restart bool) (healthy time.Duration, err error) {
	started := time.Now()
	p, err := startProcess(r.component)
	if err != nil {
		return 0, err
	}

	var readyAt time.Time
	polling, cancel := context.WithCancel(ctx)
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		if !r.pollReady(polling) {
			return
		}
		readyAt = time.Now()
		r.notify(Event{Kind: Ready, Restart: restart, Took: readyAt.Sub(started)})
		if !r.everReady() {
			close(r.wasReady)
		}
	}()
	defer func() {
		cancel()
		<-polled
		if !readyAt.IsZero() {
			healthy = time.Since(readyAt)
		}
	}()

	select {
	case <-p.done:
		return 0, p.err
	case <-ctx.Done():
		r.end(p)
		return 0, nil
	}
}

// end stops the process, and kills it after the timeout or if forced.
func (r *runner) end(p *process) {
	r.notify(Event{Kind: Stopping})
	timeout := time.NewTimer(r.sup.config.stopTimeout)
	defer timeout.Stop()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		r.notify(Event{Kind: Stopped})
		return
	case <-timeout.C:
	case <-r.sup.config.Force:
	}
	p.signal(syscall.SIGKILL)
	<-p.done
	r.notify(Event{Kind: Killed})
}

// pollReady returns true when the component is ready, and false when ctx ends before. It reports a slow component.
func (r *runner) pollReady(ctx context.Context) bool {
	report := time.Now().Add(r.sup.config.slowAfter)
	intervals := wait.Backoff{Duration: firstPollInterval, Factor: 1.1, Cap: maxPollInterval, Steps: math.MaxInt}
	return intervals.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := r.component.Ready(ctx)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		r.err.Store(&err)
		if now := time.Now(); err != nil && now.After(report) {
			report = now.Add(waitingEvery)
			r.notify(Event{Kind: Waiting, Err: err})
		}
		return err == nil, nil
	}) == nil
}

func (r *runner) notify(e Event) {
	e.Component = r.component.Name
	r.sup.notify(e)
}

func (r *runner) everReady() bool {
	select {
	case <-r.wasReady:
		return true
	default:
		return false
	}
}

func (r *runner) lastError() error {
	if err := r.err.Load(); err != nil && *err != nil {
		return *err
	}
	return errors.New("the process is not running yet")
}
