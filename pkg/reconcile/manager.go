package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"
)

// ErrEnded says that a controller returned although it was not asked to.
var ErrEnded = errors.New("ended by itself")

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

// Manager runs the controllers of a catalogue.
type Manager struct {
	entries []entry
}

type entry struct {
	runnable  Runnable
	informers []Synced
}

// NewManager makes the enabled controllers of catalogue, and starts nothing.
func NewManager[D any](catalogue []Descriptor[D], deps D) (*Manager, error) {
	m := &Manager{}
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
		e := entry{runnable: runnable}
		if d.Informers != nil {
			e.informers = d.Informers(deps)
		}
		m.entries = append(m.entries, e)
	}
	return m, nil
}

// Names returns the names of the controllers, in the order of the catalogue.
func (m *Manager) Names() []string {
	names := make([]string, 0, len(m.entries))
	for _, e := range m.entries {
		names = append(names, e.runnable.Name())
	}
	return names
}

// Run starts the controllers in order, each as soon as its informers have
// synced, without one that has to wait holding up the others. When ctx ends it
// stops them in reverse order, each before the one it was started after, and
// returns nil. If a controller fails, or ends by itself, the others are stopped
// too and the error is returned.
func (m *Manager) Run(ctx context.Context) error {
	type running struct {
		name   string
		cancel context.CancelFunc
		done   chan error
	}
	failed := make(chan error, len(m.entries))
	started := make([]running, 0, len(m.entries))
	for _, e := range m.entries {
		r := running{name: e.runnable.Name(), done: make(chan error, 1)}
		// Not cancelled by ctx itself: the order of stopping is ours.
		var own context.Context
		own, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
		started = append(started, r)
		go func() {
			err := e.run(own)
			if err == nil && own.Err() == nil {
				err = ErrEnded
			}
			if err != nil {
				err = fmt.Errorf("controller %s: %w", r.name, err)
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
	for _, s := range slices.Backward(started) {
		s.cancel()
		if err := <-s.done; err != nil && !errors.Is(err, cause) {
			errs = append(errs, err)
		}
		klog.FromContext(ctx).V(2).Info("Controller stopped", "controller", s.name)
	}
	return errors.Join(errs...)
}

// run waits for the informers, then runs the controller.
func (e entry) run(ctx context.Context) error {
	for _, informer := range e.informers {
		if err := informer.WaitForSync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped while it waited, which is no failure
			}
			return err
		}
	}
	return e.runnable.Run(ctx)
}
