package shards

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Which selects shards.
type Which string

const (
	// All means all shards.
	All Which = "All"
	// Reachable means the shards that respond.
	Reachable Which = "Reachable"
)

// Missing is a shard whose objects may be outdated or missing.
type Missing struct {
	// Shard is its name; empty for the Shard objects themselves.
	Shard string
	Since time.Time
	Why   error
}

// Missing returns the shards that are unreachable or cannot be followed, sorted by name, after the Shard objects if
// these cannot be followed.
func (m *Multi[T]) Missing() []Missing {
	var missing []Missing
	if since, why := m.registry.unreachable(); why != nil {
		missing = append(missing, Missing{Since: since, Why: fmt.Errorf("the Shard objects: %w", why)})
	}
	for _, s := range m.all() {
		if since, why := s.unreachable(); why != nil {
			missing = append(missing, Missing{Shard: s.name, Since: since, Why: why})
		}
	}
	return missing
}

// WaitForSync waits until the Shard objects and the objects of all shards were read. With Reachable, it does not wait
// for shards that are found to be unreachable. The error names the missing shards, with reasons.
func (m *Multi[T]) WaitForSync(ctx context.Context, which Which) error {
	for {
		m.mu.Lock()
		changed := m.changed
		m.mu.Unlock()
		err := m.missingFor(which)
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s has not synced: %w", m.name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// HasSynced reports whether WaitForSync would return immediately.
func (m *Multi[T]) HasSynced(which Which) bool { return m.missingFor(which) == nil }

// missingFor returns an error that names everything that was not read.
func (m *Multi[T]) missingFor(which Which) error {
	m.mu.Lock()
	complete := m.complete
	m.mu.Unlock()
	if !complete {
		_, why := m.registry.unreachable()
		return fmt.Errorf("the Shard objects: %w", errors.Join(errNotRead, why))
	}
	var errs []error
	for _, s := range m.all() {
		if informer := m.Of(s.name); informer != nil && informer.HasSynced() {
			continue
		}
		_, why := s.unreachable()
		if why == nil || which == Reachable && !errors.Is(why, errNotRead) {
			continue
		}
		errs = append(errs, fmt.Errorf("shard %s: %w", s.name, why))
	}
	return errors.Join(errs...)
}

func (m *Multi[T]) count() (connected, missing int) {
	for _, s := range m.all() {
		if _, why := s.unreachable(); why != nil {
			missing++
		} else {
			connected++
		}
	}
	return connected, missing
}

// notify wakes callers of WaitForSync.
func (m *Multi[T]) notify() {
	if m.missingFor(Reachable) == nil {
		m.union.MarkSynced()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}
