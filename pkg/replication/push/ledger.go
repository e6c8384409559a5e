package push

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// ledger knows which changes of a resource's objects the shard has told of and the cache server
// has not acknowledged yet, and so up to which version of the shard it has everything.
type ledger struct {
	mu sync.Mutex
	// told counts the changes that the shard has told of.
	told uint64
	// open are the objects of which a change is not acknowledged.
	open map[client.Key]*openChange
	// firstSince is when the first of the changes was told that no checkpoint covers.
	firstSince time.Time
	// latest is the last checkpoint up to which everything is acknowledged, and waiting one
	// that is to be the next.
	latest, waiting checkpoint
}

// openChange is an object of which a change is not acknowledged.
type openChange struct {
	// first is the number of the first change that is not, and since when it was told; zero for
	// objects that were there before.
	first uint64
	since time.Time
	// writing is set while somebody brings the replica up to date. next is the first change
	// since that has begun, or 0.
	writing   bool
	next      uint64
	nextSince time.Time
}

// checkpoint is a version of the shard, and how many changes it had told of when it was there.
type checkpoint struct {
	version string
	told    uint64
	// since is when the first change was told that is covered, and by no mark that has come back.
	since time.Time
}

func newLedger() *ledger { return &ledger{open: map[client.Key]*openChange{}} }

// tell says that the shard has told of a change of an object. initial is for objects that were there
// before: of those nobody knows since when they wait.
func (l *ledger) tell(key client.Key, initial bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var now time.Time
	if !initial {
		now = time.Now()
		if l.firstSince.IsZero() {
			l.firstSince = now
		}
	}
	l.told++
	switch o := l.open[key]; {
	case o == nil:
		l.open[key] = &openChange{first: l.told, since: now}
	case o.writing && o.next == 0:
		o.next, o.nextSince = l.told, now
	}
}

// begin says that somebody is going to look at an object, and to bring its replica up to date.
func (l *ledger) begin(key client.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.open[key]; o != nil {
		o.writing, o.next = true, 0
	}
}

// done says that the replica is what the object was when begin was called, or later. It returns
// since when that has waited, if it has.
func (l *ledger) done(key client.Key) (since time.Time, waited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.open[key]
	if o == nil || !o.writing {
		return time.Time{}, false
	}
	since = o.since
	if o.next == 0 {
		if delete(l.open, key); len(l.open) == 0 {
			l.open = map[client.Key]*openChange{} // maps do not shrink
		}
	} else {
		*o = openChange{first: o.next, since: o.nextSince}
	}
	return since, !since.IsZero()
}

// has reports whether a change of an object is not acknowledged.
func (l *ledger) has(key client.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[key] != nil
}

// pending returns the objects of which a change is not acknowledged.
func (l *ledger) pending() []client.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// checkpoint returns the last version up to which everything is acknowledged, and false as long as
// that is not known. version returns up to which the shard has told everything, or nothing where
// that is not known now.
func (l *ledger) checkpoint(version func() string) (checkpoint, bool) {
	// Before what was told is looked at: all changes up to it are among these.
	reached := version()
	l.mu.Lock()
	defer l.mu.Unlock()
	if reached == "" {
		l.latest, l.waiting = checkpoint{}, checkpoint{}
		return checkpoint{}, false
	}
	oldest := l.told + 1
	for _, o := range l.open {
		oldest = min(oldest, o.first)
	}
	for range 2 { // the one that waits, and, if that is done, the present state
		if l.waiting.version == "" {
			l.waiting = checkpoint{version: reached, told: l.told, since: l.firstSince}
			l.firstSince = time.Time{}
		}
		if oldest <= l.waiting.told {
			break
		}
		if !l.latest.since.IsZero() {
			l.waiting.since = l.latest.since
		}
		l.latest, l.waiting = l.waiting, checkpoint{}
	}
	return l.latest, l.latest.version != ""
}

// last returns what checkpoint has returned last.
func (l *ledger) last() (checkpoint, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest, l.latest.version != ""
}

// returned says that a mark has come back with a checkpoint. It returns since when the first
// change that it covers has waited for that, if there was any.
func (l *ledger) returned(at checkpoint) (since time.Time, waited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest.since.Equal(at.since) {
		l.latest.since = time.Time{}
	}
	return at.since, !at.since.IsZero()
}
