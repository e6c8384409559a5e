// Package lifecycle opens what a server stands on in order, runs its parts, and stops and
// closes all in reverse: what a part builds on is there before it runs and until it has ended.
//
//	Opened etcd ─► Opened storage ─► Run(ctx): part 1, part 2, … each when what it needs is there
//	                                           ctx ends, or a part fails
//	closed etcd ◄─ closed storage ◄─            part 1 ended ◄─ part 2 ended ◄─ …
//
// No part waits for those before it to be ready, only for what it Needs itself. What must be
// there first is opened first, and undone if the rest cannot be. The parts of a server need each
// other in a circle: informers read what the API serves, which decides by what informers know. And
// a server whose peers, or whose caches, are away for long has to serve all else, and to say by
// its readiness checks what it waits for, which it can only once its listener runs.
//
// The servers are groups of parts, and so are the controllers of a shard. It
// knows neither. Package lifecycletest holds of servers that a half start is undone.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

// ErrEnded is the error of a part that returned although it was not asked to.
var ErrEnded = errors.New("ended by itself")

// Part is something that works until its context ends.
type Part struct {
	// Name is what logs and errors call the part.
	Name string
	// Needs returns once what the part needs to run is there, which may be work of
	// any other part. No other part waits for that. Nil means that nothing is needed.
	Needs func(ctx context.Context) error
	// Run works until ctx ends, and returns when all goroutines of the part have
	// ended. An earlier return, with an error or without, ends the group.
	Run func(ctx context.Context) error
}

// Group is a number of parts that live together. It is put together by one
// goroutine and runs once; Opened and Close may be called from any.
type Group struct {
	kind  string
	parts []Part

	mu      sync.Mutex
	closers []func()
}

// New returns an empty group. Kind is what logs and errors call its parts, such
// as "controller".
func New(kind string) *Group { return &Group{kind: kind} }

// Add puts parts behind those that the group has: they are stopped before those.
func (g *Group) Add(parts ...Part) { g.parts = append(g.parts, parts...) }

// Opened notes what Close has to undo: something that was opened while the
// group was assembled.
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

// Close undoes, in reverse order, what was opened; once, however often it is
// called. A group that runs is ended by the context of Run, which closes it.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, undo := range slices.Backward(g.closers) {
		undo()
	}
	g.closers = nil
}

// running is a part that was started.
type running struct {
	Part

	cancel context.CancelFunc
	done   chan error
}

// Run has each part run as soon as what it needs is there. When ctx ends, it stops
// them in reverse order, each when those behind it have ended, closes the group and
// returns nil. If a part fails, or ends by itself, the others are stopped, too, and Run
// returns the error.
func (g *Group) Run(ctx context.Context) error {
	defer g.Close()
	failed := make(chan error, len(g.parts))
	started := make([]running, 0, len(g.parts))
	for _, p := range g.parts {
		r := running{Part: p, done: make(chan error, 1)}
		// Not cancelled by ctx itself: the order of stopping is ours.
		var own context.Context
		own, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
		started = append(started, r)
		go func() {
			err := r.run(own)
			if err == nil && own.Err() == nil {
				err = ErrEnded
			}
			if err != nil {
				err = fmt.Errorf("%s %s: %w", g.kind, r.Name, err)
				failed <- err
			}
			r.done <- err
		}()
	}

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-failed:
	}
	errs := []error{cause}
	for _, r := range slices.Backward(started) {
		r.cancel()
		if err := <-r.done; err != nil && !errors.Is(err, cause) {
			errs = append(errs, err)
		}
		klog.FromContext(ctx).V(2).Info("Stopped", g.kind, r.Name)
	}
	return errors.Join(errs...)
}

// run waits for what the part needs, then runs it.
func (r running) run(ctx context.Context) error {
	if r.Needs != nil {
		if err := r.Needs(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped while it waited, which is no failure
			}
			return err
		}
	}
	return r.Run(ctx)
}
