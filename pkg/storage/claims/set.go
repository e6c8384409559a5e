// Package claims maintains sets of claimed objects. A set contains the logical clusters that accept a permission claim
// of an APIExport on one resource, and the objects that each claim selects. Requests that are restricted to a Set find
// no other objects.
//
// A set is in memory. Each change has a version, so that lists at a version and watches from a version can determine
// their objects. The component that watches the bindings updates the sets; the storage of the resource reads them.
package claims

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// remembered is the maximum number of changes in a set's history, and rememberedBytes the maximum size of
	// their selectors and names. Watches from earlier versions must list again.
	//
	//reference:limit cluster | permission claims: changes from which a watch can resume | 410
	remembered = 10_000
	//reference:limit cluster | permission claims: size of the changes from which a watch can resume | 410
	rememberedBytes = 4 << 20
)

// Set contains the logical clusters with claimed objects of one resource, each with a selection. All methods
// can be called concurrently, and none of them waits for a request.
type Set struct {
	source   *Source
	resource schema.GroupResource
	identity string

	mu      sync.Mutex
	members map[logicalcluster.Name]Selection
	// snapshot is a sorted copy of members, or nil after a change.
	snapshot *Snapshot
	// begun is set when the set may be in the same state on another replica.
	begun bool
	// version is the version of the latest change.
	version uint64
	// floor is the version after which the history is complete.
	floor uint64
	// changes is the history, in order. Of those before ended, until is known.
	changes []Change
	ended   int
	// bytes is the size of the history. A change counts for After, because Before belongs to the one before.
	bytes int
	// waiting are the changes that the follower has not applied yet, with Cluster, After and Revision.
	waiting []Change
	notify  func()
}

const forever = ^uint64(0)

// Change replaces the selection of a logical cluster in a set.
type Change struct {
	Cluster       logicalcluster.Name
	Before, After Selection
	// Revision is the resource version of the object that caused the change.
	Revision uint64
	// Version is the resource version after which watches receive the change here, and Time when it was applied.
	Version uint64
	Time    time.Time
	// until is a resource version that was current after all replicas had seen the change.
	until uint64
}

// Lagged is the time until which another replica may have used the state before the change.
func (c Change) Lagged() time.Time { return c.Time.Add(lag) }

// NewSet returns an empty set for the objects of a resource with an identity, which is empty for resources that no
// export defines. since is the resource version up to which the caller has read the bindings. Changes up to it belong
// to the initial state, so that watches from earlier versions must list again.
func NewSet(source *Source, resource schema.GroupResource, identity string, since uint64) *Set {
	return &Set{source: source, resource: resource, identity: identity, members: map[logicalcluster.Name]Selection{}, version: since, floor: since}
}

// Begin completes the initial state. Later changes are also recorded for watches that resume from since,
// because another replica, or an earlier list of this one, may have used the state before.
func (s *Set) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
}

// CatchUp waits until the set has all changes up to a version.
func (s *Set) CatchUp(ctx context.Context, version uint64) error {
	if s.source == nil || s.source.catchUp == nil {
		return nil
	}
	return s.source.catchUp(ctx, version)
}

// Resource is the resource of the objects.
func (s *Set) Resource() schema.GroupResource { return s.resource }

// Current returns the error of the source's Current, which a request must check after it has chosen its version.
func (s *Set) Current() error { return s.source.Current() }

// Identity is the identity of the objects.
func (s *Set) Identity() string { return s.identity }

// Allow sets the selection of a logical cluster to the objects that the selector matches; nil matches all. revision is
// the resource version of the object that caused the change. It acquires the lock of the hub that follows the set.
// BackendConfig.ClaimLabels and attributes are computed under this lock, so that they must not acquire a lock of the
// caller.
func (s *Set) Allow(cluster logicalcluster.Name, selector labels.Selector, revision uint64) {
	s.change(cluster, Select(selector), revision)
}

// AllowNames is like Allow for the objects with the names; without names it is like Deny.
func (s *Set) AllowNames(cluster logicalcluster.Name, names []string, revision uint64) {
	s.change(cluster, SelectNames(names), revision)
}

// Deny removes a logical cluster from the set. Before a set is dropped, all its logical clusters must be denied.
func (s *Set) Deny(cluster logicalcluster.Name, revision uint64) {
	s.change(cluster, Selection{}, revision)
}

func (s *Set) change(cluster logicalcluster.Name, selection Selection, revision uint64) {
	s.mu.Lock()
	var notify func()
	change := Change{Cluster: cluster, After: selection, Revision: revision}
	switch {
	case s.newestLocked(cluster).equal(selection):
	case s.notify == nil:
		s.applyLocked(change, max(revision, s.version), time.Now())
	default:
		s.waiting = append(s.waiting, change)
		notify = s.notify
	}
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// Selection returns the selection of a logical cluster after all changes, including pending ones.
func (s *Set) Selection(cluster logicalcluster.Name) Selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestLocked(cluster)
}

func (s *Set) newestLocked(cluster logicalcluster.Name) Selection {
	for _, w := range slices.Backward(s.waiting) {
		if w.Cluster == cluster {
			return w.After
		}
	}
	return s.members[cluster]
}

// Len is the number of logical clusters in the set.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members)
}

func (s *Set) applyLocked(change Change, version uint64, now time.Time) Change {
	change.Before, change.Version, change.Time, change.until = s.members[change.Cluster], version, now, forever
	if change.After.held {
		s.members[change.Cluster] = change.After
	} else {
		delete(s.members, change.Cluster)
	}
	s.snapshot, s.version = nil, version
	if s.begun || version > s.floor || len(s.changes) > 0 {
		s.changes = append(s.changes, change)
		s.bytes += change.After.bytes()
		s.compactLocked(version, now)
	}
	return change
}

// compactLocked drops the oldest changes beyond the limits, but none that another replica may not have seen.
func (s *Set) compactLocked(version uint64, now time.Time) {
	s.advanceLocked(version, now)
	n := 0
	for ; n < s.ended && (len(s.changes)-n > remembered || s.bytes > rememberedBytes); n++ {
		s.bytes -= s.changes[n].After.bytes()
	}
	if n == 0 {
		return
	}
	// A watch from a version after until does not need the change.
	s.floor = max(s.floor, s.changes[n-1].until+1)
	clear(s.changes[:n])
	s.changes, s.ended = s.changes[n:], s.ended-n
}

// advanceLocked sets until of the changes that all replicas have seen by now.
func (s *Set) advanceLocked(version uint64, now time.Time) {
	since, current := s.source.currentSince(now)
	if !current || now.Sub(since) <= lag {
		return
	}
	for ; s.ended < len(s.changes) && now.Sub(s.changes[s.ended].Time) > lag; s.ended++ {
		until := max(version, s.changes[s.ended].Version)
		if s.ended > 0 {
			until = max(until, s.changes[s.ended-1].until)
		}
		s.changes[s.ended].until = until
	}
}

// WithSet returns a context that restricts requests to the storage of the set's resource to the set, and to objects of
// its identity. Requests to any other storage fail. Functions like request.WithCluster remove the restriction.
func WithSet(ctx context.Context, set *Set) context.Context {
	ctx = request.WithIdentity(ctx, set.resource, set.identity)
	return request.WithRestriction(ctx, set)
}

// From returns the set that a request is restricted to, or nil. Its resource is the stored resource of the
// request, e.g. events of the core group also for events.k8s.io.
func From(ctx context.Context) *Set {
	by := request.RestrictionFrom(ctx)
	if by == nil {
		return nil
	}
	return by.(*Set) //nolint:forcetypeassert // no other type exists, and nil would be no restriction
}

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
		s.applyLocked(w, max(w.Revision, s.version), time.Now())
	}
	s.waiting = nil
}

// Apply applies the pending changes of the version or an older one, and returns them. more reports whether
// newer ones are pending. They take effect after the version.
func (s *Set) Apply(version uint64) (made []Change, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.waiting) > 0 && s.waiting[0].Revision <= version {
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
		version = max(version, w.Revision)
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

// At returns the state at a version, or ErrCompacted. It includes changes up to the version that were applied later.
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

// Advance records the version for changes that all replicas have seen, which later watches do not receive.
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
