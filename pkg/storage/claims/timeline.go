package claims

import (
	"errors"
	"maps"
	"time"
)

// ErrCompacted says that a set does not know any more what it was at a version.
var ErrCompacted = errors.New("the permission claims are not known any more at this resource version: list again")

// Follow has the caller apply the changes from now on, which notify tells of: it is
// called after each change, without a lock of the set. There is one follower at most:
// Follow reports whether it is the caller.
func (s *Set) Follow(notify func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notify != nil {
		return false
	}
	s.notify = notify
	return true
}

// Followed reports whether somebody follows the set: requests watch what it holds.
func (s *Set) Followed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notify != nil
}

// Unfollow ends what Follow began.
func (s *Set) Unfollow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = nil
	for _, w := range s.waiting {
		s.applyLocked(w, max(w.revision, s.version), time.Now())
	}
	s.waiting = nil
}

// Apply makes the changes that wait for the version or an older one, and returns them,
// and whether others wait for a newer one. They count after the version.
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

// Restart forgets all changes, and that they have happened: for an etcd that is at an
// older version than it was.
func (s *Set) Restart(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes, s.ended, s.bytes = nil, 0, 0
	s.version, s.floor = version, version
}

// Version is the latest resource version of a change, of those included that wait for it.
func (s *Set) Version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := s.version
	for _, w := range s.waiting {
		version = max(version, w.revision)
	}
	return version
}

// Latest returns the set as it is. It is remembered until the next change; then it takes
// as long as sorting the logical clusters.
func (s *Set) Latest() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latestLocked()
}

func (s *Set) latestLocked() *Snapshot {
	if s.view == nil {
		s.view = newView(s.members)
	}
	return s.view
}

// At returns the set as it was at a version, or ErrCompacted. It has the changes of all objects up to
// the version, also those that came later.
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
	return newView(members), nil
}

// Advance lets changes that every replica has seen end at the version, so that watches
// from later ones are not told of them. It costs nothing where nothing has changed.
func (s *Set) Advance(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advanceLocked(version, time.Now())
}

// Missed returns the changes that a watch from a version has to be told, in order, or
// ErrCompacted. Where here says that what was seen at the version was seen here, these
// are the ones since; else also those that another replica may not have seen at it.
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
