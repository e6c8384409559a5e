package claims

import (
	"errors"
	"maps"
	"time"
)

// ErrCompacted is returned if the history of a set does not include a version.
var ErrCompacted = errors.New("the permission claims at this resource version are no longer available: list again")

// Follow makes the caller apply all following changes. notify is called after each change, without a lock of
// the set. A set has at most one follower; Follow reports whether it is the caller.
func (s *Set) Follow(notify func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notify != nil {
		return false
	}
	s.notify = notify
	return true
}

// Followed reports whether a storage follows the set, because requests watch it.
func (s *Set) Followed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notify != nil
}

// Unfollow ends Follow.
func (s *Set) Unfollow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = nil
	for _, w := range s.waiting {
		s.applyLocked(w, max(w.revision, s.version), time.Now())
	}
	s.waiting = nil
}

// Apply applies the pending changes of the version or an older one, and returns them. more reports whether
// newer ones are pending. They take effect after the version.
func (s *Set) Apply(version uint64) (made []Change, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.waiting) > 0 && s.waiting[0].revision <= version {
		made = append(made, s.applyLocked(s.waiting[0], max(version, s.version), now))
		s.waiting = s.waiting[1:]
	}
	return made, len(s.waiting) > 0
}

// Restart drops the history, because etcd was restored to an older version.
func (s *Set) Restart(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes, s.ended, s.bytes = nil, 0, 0
	s.version, s.floor = version, version
}

// Version is the latest resource version of a change, including pending ones.
func (s *Set) Version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := s.version
	for _, w := range s.waiting {
		version = max(version, w.revision)
	}
	return version
}

// Latest returns the current state. It is cached until the next change; then the logical clusters are sorted.
func (s *Set) Latest() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latestLocked()
}

func (s *Set) latestLocked() *Snapshot {
	if s.snapshot == nil {
		s.snapshot = newSnapshot(s.members)
	}
	return s.snapshot
}

// At returns the state at a version, or ErrCompacted. It includes the changes of all objects up to the
// version, also those that were applied later.
func (s *Set) At(version uint64) (*Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case version >= s.version:
		return s.latestLocked(), nil
	case version < s.floor:
		return nil, ErrCompacted
	}
	members := maps.Clone(s.members)
	for i := len(s.changes) - 1; i >= 0 && s.changes[i].Revision > version; i-- {
		if c := s.changes[i]; c.Before.held {
			members[c.Cluster] = c.Before
		} else {
			delete(members, c.Cluster)
		}
	}
	return newSnapshot(members), nil
}

// Advance records the version for changes that all replicas have seen, so that watches from later versions do
// not receive them. It is cheap without such changes.
func (s *Set) Advance(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advanceLocked(version, time.Now())
}

// Missed returns the changes that a watch from a version has missed, in order, or ErrCompacted. If here is
// true, the watch's client has read the objects at this version from this replica. Otherwise the result
// includes changes that another replica may not have seen at the version.
func (s *Set) Missed(version uint64, here bool) ([]Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.floor {
		return nil, ErrCompacted
	}
	n := len(s.changes)
	for n > 0 {
		last := s.changes[n-1].until
		if here {
			last = s.changes[n-1].Version
		}
		if last < version {
			break
		}
		n--
	}
	return append([]Change(nil), s.changes[n:]...), nil
}
