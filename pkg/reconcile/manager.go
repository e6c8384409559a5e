package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/lifecycle"
)

// Runnable runs until its context is done and returns after all of its goroutines have exited.
type Runnable interface {
	Name() string
	Run(ctx context.Context) error
}

// Synced is a prerequisite of a controller, e.g. an informer.
type Synced interface {
	WaitForSync(ctx context.Context) error
}

// Made is a controller with its prerequisites.
type Made struct {
	Runnable

	// Needs must have synced before the controller starts. The caller runs them.
	Needs []Synced
	// Owns are informers that only this controller uses. They run as long as the controller and must have synced, too.
	Owns []client.Runner
}

// Placement defines the replicas of a server that run a controller.
type Placement string

const (
	// OnLeader runs the controller only on the leader.
	OnLeader Placement = "leader"
	// OnEveryReplica runs the controller on each replica. Its work must be safe to repeat concurrently.
	OnEveryReplica Placement = "every replica"
)

// Descriptor is the entry of a controller in a catalogue. D contains the dependencies of all controllers.
type Descriptor[D any] struct {
	// Name identifies the controller in logs and metrics.
	Name      string
	Placement Placement
	// Enabled reports whether the controller is needed; nil means always.
	Enabled func(deps D) bool
	// New returns the controller. It must not start anything.
	New func(deps D) (Made, error)
}

// NewManager returns a group of the enabled controllers with one of the placements. The group starts each controller
// after its informers have synced.
func NewManager[D any](catalogue []Descriptor[D], deps D, placements ...Placement) (*lifecycle.Group, error) {
	group := lifecycle.NewGroup("controller")
	seen := map[string]bool{}
	for _, d := range catalogue {
		if seen[d.Name] {
			return nil, fmt.Errorf("two controllers are named %q", d.Name)
		}
		seen[d.Name] = true
		if !slices.Contains(placements, d.Placement) || (d.Enabled != nil && !d.Enabled(deps)) {
			continue
		}
		made, err := d.New(deps)
		if err != nil {
			return nil, fmt.Errorf("creating controller %s: %w", d.Name, err)
		}
		if made.Name() != d.Name {
			return nil, fmt.Errorf("controller %s is named %s in the catalogue: logs and metrics would differ", made.Name(), d.Name)
		}
		group.Add(lifecycle.Part{
			Name: d.Name, Needs: made.synced,
			Run: func(ctx context.Context) error { return made.run(ctx, d.Placement) },
		})
	}
	return group, nil
}

func (m Made) synced(ctx context.Context) error {
	for _, needed := range m.Needs {
		if err := needed.WaitForSync(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run runs the controller after its own informers have synced. The informers stop after the controller.
func (m Made) run(ctx context.Context, placement Placement) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following, unfollow := context.WithCancel(context.WithoutCancel(ctx))
	defer unfollow()
	informers := &client.Group{}
	informers.Add(m.Owns...)
	ended := make(chan error, 1)
	go func() {
		ended <- informers.Run(following)
		cancel()
	}()
	err := informers.WaitForSync(ctx)
	switch {
	case err == nil:
		labels := map[string]string{"controller": m.Name(), "placement": string(placement)}
		running := metricsFrom(ctx).running
		running.With(labels).Set(1)
		err = m.Run(ctx)
		running.Delete(labels)
	case ctx.Err() != nil:
		err = nil // stopped while waiting
	}
	unfollow()
	return errors.Join(err, <-ended)
}
