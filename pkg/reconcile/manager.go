package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/lifecycle"
)

// Runnable is something that works until its context ends and returns when all
// of its goroutines have. Controllers are.
type Runnable interface {
	Name() string
	Run(ctx context.Context) error
}

// Synced is something that has to be complete before a controller may decide
// on it; informers are.
type Synced interface {
	WaitForSync(ctx context.Context) error
}

// Made is a controller and what it needs to run.
type Made struct {
	Runnable

	// Needs are waited for before the controller runs. Somebody else runs them.
	Needs []Synced
	// Owns are informers of this controller's alone. They run as long as it, and
	// are waited for as well.
	Owns []client.Runner
}

// Placement says on which replicas of a server a controller runs.
type Placement string

const (
	// OnLeader is a controller that runs on the replica that leads only.
	OnLeader Placement = "leader"
	// OnEveryReplica is a controller that runs on each replica, whoever leads:
	// nothing is wrong when its work is done twice.
	OnEveryReplica Placement = "every replica"
)

// Descriptor is the entry of a controller in a catalogue, and all that has to be
// said of it there. D is what the controllers of the catalogue are made from.
type Descriptor[D any] struct {
	// Name identifies the controller, in logs and metrics too.
	Name string
	// Placement says on which replicas of a server it runs.
	Placement Placement
	// Enabled reports whether the controller is wanted at all; nil means always.
	Enabled func(deps D) bool
	// New makes the controller. It must not start anything.
	New func(deps D) (Made, error)
}

// NewManager makes the enabled controllers of a catalogue that have one of the
// placements, as a group that runs each as soon as its informers have synced. It
// starts nothing.
func NewManager[D any](catalogue []Descriptor[D], deps D, placements ...Placement) (*lifecycle.Group, error) {
	group := lifecycle.New("controller")
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
			return nil, fmt.Errorf("cannot make controller %s: %w", d.Name, err)
		}
		if made.Name() != d.Name {
			return nil, fmt.Errorf("controller %s is called %s in the catalogue: logs and metrics would differ", made.Name(), d.Name)
		}
		group.Add(lifecycle.Part{
			Name: d.Name, Needs: made.synced,
			Run: func(ctx context.Context) error { return made.run(ctx, d.Placement) },
		})
	}
	return group, nil
}

// synced waits for what others run.
func (m Made) synced(ctx context.Context) error {
	for _, needed := range m.Needs {
		if err := needed.WaitForSync(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run runs the controller's own informers and, as soon as those have synced, the
// controller, which ends before them.
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
		err = nil // stopped while it waited, which is no failure
	}
	unfollow()
	return errors.Join(err, <-ended)
}
