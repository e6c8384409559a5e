package client

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Runner is an informer of any type.
type Runner interface {
	// Name returns the informer's name.
	Name() string
	// Run follows the resource until ctx is done.
	Run(ctx context.Context) error
	// HasSynced reports whether the complete state was received once.
	HasSynced() bool
	// WaitForSync waits until HasSynced.
	WaitForSync(ctx context.Context) error
}

// Group runs informers together. The zero value is an empty group.
type Group struct {
	mu      sync.Mutex
	runners []Runner
	start   func(Runner)
}

// Add adds informers. They start immediately if the group runs, and never if it has stopped.
func (g *Group) Add(runners ...Runner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runners = append(g.runners, runners...)
	if g.start == nil {
		return
	}
	for _, r := range runners {
		g.start(r)
	}
}

// Run runs all informers until ctx is done and all have ended. If one cannot run, it stops the others and fails.
func (g *Group) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	g.mu.Lock()
	if g.start != nil {
		g.mu.Unlock()
		return errors.New("the informer group was already run: create a new one")
	}
	g.start = func(r Runner) { running.Go(func() error { return r.Run(ctx) }) }
	for _, r := range g.runners {
		g.start(r)
	}
	g.mu.Unlock()

	<-ctx.Done()
	g.mu.Lock()
	g.start = func(Runner) {}
	g.mu.Unlock()
	return running.Wait()
}

// WaitForSync waits until all informers have synced. If ctx ends first, the error names the others, with reasons.
func (g *Group) WaitForSync(ctx context.Context) error {
	var errs []error
	for _, r := range g.members() {
		errs = append(errs, r.WaitForSync(ctx))
	}
	return errors.Join(errs...)
}

func (g *Group) members() []Runner {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.runners)
}
