// Package lifecycle opens the dependencies of a server in order, runs its parts, and stops and closes everything in
// reverse order. A part's dependencies are available before it runs and until it has ended.
//
//	Opened etcd ─► Opened storage ─► Run(ctx): part 1, part 2, … each when its needs are met
//	                                           ctx ends, or a part fails
//	closed etcd ◄─ closed storage ◄─            part 1 ended ◄─ part 2 ended ◄─ …
//
// A part only waits for its own Needs, not for earlier parts, because the parts of a server depend on each other.
// For example, informers read from the API, whose authorization uses informers. A server whose peers or caches
// are unreachable must serve other requests and report the reason in its readiness checks. Resources that are
// needed earlier are opened before.
//
// Servers and the controllers of a shard are groups of parts.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

// ErrEnded is the error of a part that returned before it was stopped.
var ErrEnded = errors.New("ended unexpectedly")

// Part runs until its context ends.
type Part struct {
	// Name is the name of the part in logs and errors.
	Name string
	// Needs returns when the requirements of the part, which may be other parts, are met. It may be nil.
	Needs func(ctx context.Context) error
	// Run works until ctx ends, and returns when all its goroutines have ended. An earlier return ends the group.
	Run func(ctx context.Context) error
}

// Group is a set of parts that run together. It must be assembled by one goroutine, and runs once. Opened and Close may
// be called concurrently.
type Group struct {
	kind  string
	parts []Part

	mu      sync.Mutex
	closers []func()
}

// NewGroup returns an empty group. Kind is the kind of its parts in logs and errors, e.g. "controller".
func NewGroup(kind string) *Group { return &Group{kind: kind} }

// Add appends parts. They are stopped before earlier parts.
func (g *Group) Add(parts ...Part) { g.parts = append(g.parts, parts...) }

// Opened registers a function for Close, which closes a resource that was opened while the group was assembled.
func (g *Group) Opened(undo func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closers = append(g.closers, undo)
}

// Names returns the names of the parts, in order.
func (g *Group) Names() []string {
	names := make([]string, 0, len(g.parts))
	for _, p := range g.parts {
		names = append(names, p.Name)
	}
	return names
}

// Close closes the opened resources once, in reverse order. If the group runs, end the context of Run instead.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, undo := range slices.Backward(g.closers) {
		undo()
	}
	g.closers = nil
}

// Run runs each part as soon as its needs are met. When ctx ends, it stops the parts one by one in reverse order,
// closes the group and returns nil. If a part fails or returns early, it does the same and returns the error.
func (g *Group) Run(ctx context.Context) error {
	defer g.Close()
	failed := make(chan error, len(g.parts))
	stops := make([]func() error, 0, len(g.parts))
	for _, p := range g.parts {
		// Not cancelled by ctx, because the parts are stopped in order.
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		stops = append(stops, func() error {
			cancel()
			return <-done
		})
		go func() {
			err := p.run(own)
			if err != nil {
				err = fmt.Errorf("%s %s: %w", g.kind, p.Name, err)
				failed <- err
			}
			done <- err
		}()
	}

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-failed:
	}
	errs := []error{cause}
	for i, stop := range slices.Backward(stops) {
		if err := stop(); err != nil && !errors.Is(err, cause) {
			errs = append(errs, err)
		}
		klog.FromContext(ctx).V(2).Info("Stopped", g.kind, g.parts[i].Name)
	}
	return errors.Join(errs...)
}

// run waits for the needs of the part, then runs it.
func (p Part) run(ctx context.Context) error {
	if p.Needs != nil {
		if err := p.Needs(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped while waiting
			}
			return err
		}
	}
	err := p.Run(ctx)
	if err == nil && ctx.Err() == nil {
		return ErrEnded
	}
	return err
}
