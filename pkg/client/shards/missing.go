package shards

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Which says of which shards something holds.
type Which string

const (
	// All are all shards of the view.
	All Which = "All"
	// Reachable are the shards that answer.
	Reachable Which = "Reachable"
)

// Missing is a shard of which the view has what it had, or nothing.
type Missing struct {
	// Shard is its name; empty for the Shard objects themselves, whose shards are followed as
	// they were known.
	Shard string
	Since time.Time
	Why   error
}

// Missing returns which shards are away or cannot be followed, in order, after the Shard objects
// if these are not followed.
func (m *Multi[T]) Missing() []Missing {
	var missing []Missing
	if since, why := m.known.away(); why != nil {
		missing = append(missing, Missing{Since: since, Why: fmt.Errorf("the Shard objects: %w", why)})
	}
	for _, s := range m.all() {
		if since, why := s.away(); why != nil {
			missing = append(missing, Missing{Shard: s.name, Since: since, Why: why})
		}
	}
	return missing
}

// WaitForSync waits until the Shard objects and all objects of the shards have been read, or, of
// Reachable, those of each shard that answers: of a shard that does not, until that is known. Its
// error says what is missing, and why.
func (m *Multi[T]) WaitForSync(ctx context.Context, which Which) error {
	for {
		m.mu.Lock()
		news := m.news
		m.mu.Unlock()
		err := m.waitsFor(which)
		if err == nil {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("%s has not synced: %w", m.name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// HasSynced reports whether WaitForSync would return at once.
func (m *Multi[T]) HasSynced(which Which) bool { return m.waitsFor(which) == nil }

// waitsFor returns what has not been read.
func (m *Multi[T]) waitsFor(which Which) error {
	m.mu.Lock()
	complete := m.complete
	m.mu.Unlock()
	if !complete {
		_, why := m.known.away()
		return fmt.Errorf("the Shard objects: %w", errors.Join(errNotRead, why))
	}
	var errs []error
	for _, s := range m.all() {
		if informer := m.Of(s.name); informer != nil && informer.HasSynced() {
			continue
		}
		_, why := s.away()
		if why == nil || which == Reachable && !errors.Is(why, errNotRead) {
			continue
		}
		errs = append(errs, fmt.Errorf("shard %s: %w", s.name, why))
	}
	return errors.Join(errs...)
}

// count returns how many shards are followed, and how many are missing.
func (m *Multi[T]) count() (connected, missing int) {
	for _, s := range m.all() {
		if _, why := s.away(); why != nil {
			missing++
		} else {
			connected++
		}
	}
	return connected, missing
}

// tell wakes those up who wait for the view.
func (m *Multi[T]) tell() {
	if m.waitsFor(Reachable) == nil {
		m.union.MarkSynced()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.news)
	m.news = make(chan struct{})
}
