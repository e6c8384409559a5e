// Package claims knows which logical clusters let somebody see their objects of one
// resource, and which of them: that is what permission claims on an API export come
// to. A request that is restricted to a Set sees nothing else.
//
// A set is in memory, and has a timeline: each change has a version, so that lists at
// a version and watches from one can tell what they have to show. Whoever knows the
// bindings makes the sets and keeps them up to date; the storage of the resource reads
// them.
package claims

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// remembered is how many changes a set knows, and rememberedBytes how long their selectors
	// and names may be together. Watches from before are told to list again.
	remembered      = 10_000
	rememberedBytes = 4 << 20
)

// Set is the logical clusters that let somebody see their objects of one resource, each
// with a selector. All methods can be called concurrently, and none waits for a request.
type Set struct {
	source   *Source
	resource schema.GroupResource
	identity string

	mu      sync.Mutex
	members map[logicalcluster.Name]Selection
	// view is members in order, once somebody has asked.
	view *Snapshot
	// begun is set once the set is as another replica may have it, too.
	begun bool
	// version is that of the latest change.
	version uint64
	// floor is the version from which on all changes are known.
	floor uint64
	// changes are the latest, in order; those before ended know until when they
	// have to be told.
	changes []Change
	ended   int
	// bytes are what the changes take: that of Before is of the change before.
	bytes int
	// waiting are changes that the follower has yet to apply.
	waiting []waiting
	notify  func()
}

type waiting struct {
	cluster   logicalcluster.Name
	selection Selection
	revision  uint64
}

const forever = ^uint64(0)

// Change is that a set holds other objects of a logical cluster than before.
type Change struct {
	Cluster       logicalcluster.Name
	Before, After Selection
	// Revision is the resource version of the object that says so.
	Revision uint64
	// Version is the resource version after which watches are told of it here, Time when that was.
	Version uint64
	Time    time.Time
	// until is a resource version that was reached when each replica had seen it.
	until uint64
}

// Lagged is until when another replica may have counted by what was before.
func (c Change) Lagged() time.Time { return c.Time.Add(lag) }

// NewSet returns an empty set of a source, if not nil, for the objects of the resource that
// have the identity, which is empty for those that no export defines. since is the resource
// version up to which the caller has read the bindings: changes up to it are how the set
// begins, and watches that resume below it are told to list again.
func NewSet(source *Source, resource schema.GroupResource, identity string, since uint64) *Set {
	return &Set{source: source, resource: resource, identity: identity, members: map[logicalcluster.Name]Selection{}, version: since, floor: since}
}

// Begin ends what the set begins with: the changes from now on are known to watches that resume from since, because
// another replica, or a list of this one, may have counted by what was before.
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

// Resource is what the set has objects of.
func (s *Set) Resource() schema.GroupResource { return s.resource }

// Current is that of the source. Whoever answers a request asks after it has chosen the
// version that it answers at.
func (s *Set) Current() error { return s.source.Current() }

// Identity is that of the objects.
func (s *Set) Identity() string { return s.identity }

// Allow lets the set hold the objects of a logical cluster that the selector matches;
// nil matches all. It replaces what was allowed before. revision is the resource version
// of the object that says so. It costs as much as the map, if nobody watches; watches are
// told what they see now and what no longer, on goroutines of their own. Nothing is
// written. Both take the lock of the hub that watches, under which BackendConfig.ClaimLabels
// and attributes are asked: so these must not take a lock that the caller holds here.
func (s *Set) Allow(cluster logicalcluster.Name, selector labels.Selector, revision uint64) {
	s.change(cluster, Select(selector), revision)
}

// AllowNames is Allow for the objects with some names; if there are none, it is Deny.
func (s *Set) AllowNames(cluster logicalcluster.Name, names []string, revision uint64) {
	s.change(cluster, SelectNames(names), revision)
}

// Deny takes all objects of a logical cluster out of the set, as Allow puts them in.
// Whoever drops a set denies all of its logical clusters first.
func (s *Set) Deny(cluster logicalcluster.Name, revision uint64) {
	s.change(cluster, Selection{}, revision)
}

func (s *Set) change(cluster logicalcluster.Name, selection Selection, revision uint64) {
	s.mu.Lock()
	var notify func()
	switch {
	case s.newestLocked(cluster).equal(selection):
	case s.notify == nil:
		s.applyLocked(waiting{cluster, selection, revision}, max(revision, s.version), time.Now())
	default:
		s.waiting = append(s.waiting, waiting{cluster, selection, revision})
		notify = s.notify
	}
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// Selection returns what the set holds of a logical cluster, by the latest change.
func (s *Set) Selection(cluster logicalcluster.Name) Selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestLocked(cluster)
}

func (s *Set) newestLocked(cluster logicalcluster.Name) Selection {
	for _, w := range slices.Backward(s.waiting) {
		if w.cluster == cluster {
			return w.selection
		}
	}
	return s.members[cluster]
}

// Len is how many logical clusters the set holds objects of.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members)
}

func (s *Set) applyLocked(w waiting, version uint64, now time.Time) Change {
	change := Change{Cluster: w.cluster, Before: s.members[w.cluster], After: w.selection, Revision: w.revision, Version: version, Time: now, until: forever}
	if w.selection.held {
		s.members[w.cluster] = w.selection
	} else {
		delete(s.members, w.cluster)
	}
	s.view, s.version = nil, version
	if s.begun || version > s.floor || len(s.changes) > 0 {
		s.changes = append(s.changes, change)
		s.bytes += change.After.bytes()
		s.compactLocked(version, now)
	}
	return change
}

// compactLocked drops the oldest changes, if there are too many, or they are too large: not those that another
// replica may have yet to see.
func (s *Set) compactLocked(version uint64, now time.Time) {
	s.advanceLocked(version, now)
	n := 0
	for ; n < s.ended && (len(s.changes)-n > remembered || s.bytes > rememberedBytes); n++ {
		s.bytes -= s.changes[n].After.bytes()
	}
	if n == 0 {
		return
	}
	// A watch from until on needs nothing of it.
	s.floor = max(s.floor, s.changes[n-1].until+1)
	clear(s.changes[:n])
	s.changes, s.ended = s.changes[n:], s.ended-n
}

// advanceLocked lets changes that every replica has seen by now end at a version that was
// reached.
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
