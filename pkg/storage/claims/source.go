package claims

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// BeatInterval is how often a source has to beat.
	BeatInterval = time.Second
	// stoodStill is after how long without a beat a source is not current: within the
	// other half of the lag, processes that run have to hear of changes.
	stoodStill = lag / 2
	// lag is how much later than here another replica may have seen a change.
	lag = 10 * time.Second
)

// Source is whoever brings changes to sets, as far as it can tell that it does. A process
// that stood still, or whose machine did, hears of what happened meanwhile in no order:
// of events of objects maybe before changes of claims that other replicas have long told
// of. So its sets show nothing until it has read the claims again. The zero value has
// never stood still.
type Source struct {
	mu sync.Mutex
	// beat is when it was last known to run, or zero.
	beat time.Time
	// since is as of when the claims were read after it stood still, and reading that they
	// have yet to be.
	since   time.Time
	reading bool
	// catchUp waits until sets have all changes up to a version; nil if they always have.
	catchUp func(ctx context.Context, version uint64) error
}

// CatchUpBy has sets use a function that waits until they have all changes up to a version. It is called before
// there are sets.
func (s *Source) CatchUpBy(catchUp func(ctx context.Context, version uint64) error) {
	s.catchUp = catchUp
}

// SeenByAll reports whether all replicas have seen a change that this one saw at a time.
func (s *Source) SeenByAll(at time.Time) bool {
	now := time.Now()
	since, current := s.currentSince(now)
	return current && now.Sub(since) > lag && now.Sub(at) > lag
}

// Beat says that the source runs. It reports whether it stood still before: then the claims
// have to be read, and Restart called.
func (s *Source) Beat() (stood bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.reading = s.reading || !s.runsLocked(now)
	s.beat = now
	return s.reading
}

// Restart says that sets have all that happened until a time.
func (s *Source) Restart(asOf time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat, s.since, s.reading = asOf, asOf, false
}

// Current returns an error that tells clients to try again where sets may not be what they
// should be by now.
func (s *Source) Current() error {
	if _, current := s.currentSince(time.Now()); !current {
		return apierrors.NewTooManyRequests("the permission claims are being read again: try again", 1)
	}
	return nil
}

// currentSince reports whether the source is current, and since when it has not stood still.
func (s *Source) currentSince(now time.Time) (time.Time, bool) {
	if s == nil {
		return time.Time{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, !s.reading && s.runsLocked(now)
}

func (s *Source) runsLocked(now time.Time) bool {
	return s.beat.IsZero() || now.Sub(s.beat) <= stoodStill
}
