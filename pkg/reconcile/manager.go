package reconcile

import (
	"context"
	"fmt"

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

// Descriptor is the entry of a controller in a catalogue. D is what the
// controllers of the catalogue are made from.
type Descriptor[D any] struct {
	// Name identifies the controller.
	Name string
	// Enabled tells whether the controller is wanted at all; nil means always.
	Enabled func(deps D) bool
	// EveryReplica says that the controller runs on each replica of a server,
	// whoever leads: nothing is wrong when it is done twice.
	EveryReplica bool
	// Informers are waited for before the controller runs.
	Informers func(deps D) []Synced
	// New makes the controller. It must not start anything.
	New func(deps D) (Runnable, error)
}

// NewManager makes the enabled controllers of catalogue, as a group that runs each
// as soon as its informers have synced. It starts nothing.
func NewManager[D any](catalogue []Descriptor[D], deps D) (*lifecycle.Group, error) {
	group := lifecycle.New("controller")
	seen := map[string]bool{}
	for _, d := range catalogue {
		if seen[d.Name] {
			return nil, fmt.Errorf("two controllers are named %q", d.Name)
		}
		seen[d.Name] = true
		if d.Enabled != nil && !d.Enabled(deps) {
			continue
		}
		runnable, err := d.New(deps)
		if err != nil {
			return nil, fmt.Errorf("cannot make controller %s: %w", d.Name, err)
		}
		part := lifecycle.Part{Name: runnable.Name(), Run: runnable.Run}
		if d.Informers != nil {
			part.Needs = synced(d.Informers(deps))
		}
		group.Add(part)
	}
	return group, nil
}

// synced waits until all informers have synced.
func synced(informers []Synced) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		for _, informer := range informers {
			if err := informer.WaitForSync(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}
