package claims

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// HeartbeatInterval is the required interval of Source.Heartbeat.
	HeartbeatInterval = time.Second
	// suspendedAfter is the time without a heartbeat after which a source is not current. In the rest of the lag,
	// running processes must receive changes.
	suspendedAfter = lag / 2
	// lag is the maximum delay after which another replica has seen a change.
	lag = 10 * time.Second
)

// Source monitors whether the process that updates sets is running. A process that was suspended receives the pending
// events in any order, e.g. events of objects before changes of claims that other replicas have already applied.
// Therefore its sets are not current until the claims have been read again.
type Source struct {
	mu sync.Mutex
	// heartbeat is the time of the last heartbeat, or zero.
	heartbeat time.Time
	// since is when the claims were last read after a suspension; reading is true until they have been.
	since   time.Time
	reading bool
	// catchUp waits until sets have all changes up to a version; nil if they always have.
	catchUp func(ctx context.Context, version uint64) error
}

// CatchUpBy sets the function that waits until sets have all changes up to a version, before there are sets.
func (s *Source) CatchUpBy(catchUp func(ctx context.Context, version uint64) error) {
	s.catchUp = catchUp
}

// ObservedByAll reports whether all replicas have seen a change that this one saw at the given time.
func (s *Source) ObservedByAll(at time.Time) bool {
	now := time.Now()
	since, current := s.currentSince(now)
	return current && now.Sub(since) > lag && now.Sub(at) > lag
}

// Heartbeat records that the source is running. If it was suspended, the claims must be read again, followed by
// Restart.
func (s *Source) Heartbeat() (suspended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.reading = s.reading || !s.runsLocked(now)
	s.heartbeat = now
	return s.reading
}

// Restart records that sets have all changes until a time.
func (s *Source) Restart(asOf time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heartbeat, s.since, s.reading = asOf, asOf, false
}

// Current returns an error that makes clients retry if sets may be outdated.
func (s *Source) Current() error {
	if _, current := s.currentSince(time.Now()); !current {
		return apierrors.NewTooManyRequests("the permission claims are being read again: try again", 1)
	}
	return nil
}

// currentSince reports whether the source is current, and since when.
func (s *Source) currentSince(now time.Time) (time.Time, bool) {
	if s == nil {
		return time.Time{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, !s.reading && s.runsLocked(now)
}

func (s *Source) runsLocked(now time.Time) bool {
	return s.heartbeat.IsZero() || now.Sub(s.heartbeat) <= suspendedAfter
}
