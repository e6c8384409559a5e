package push

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// ledger tracks the changes of a resource that the shard has reported and the cache server has not acknowledged yet. It
// derives the version of the shard up to which the cache server is complete.
type ledger struct {
	mu sync.Mutex
	// observed counts the reported changes.
	observed uint64
	// open are the keys with changes that are not acknowledged.
	open map[client.Key]*openChange
	// firstSince is the time of the first change that no checkpoint covers.
	firstSince time.Time
	// latest is the last complete checkpoint, and waiting the next one.
	latest, waiting checkpoint
}

// openChange is a key with changes that are not acknowledged.
type openChange struct {
	// first is the number of the first such change, and since its time, or zero for objects of a resync.
	first uint64
	since time.Time
	// writing is set while the replica is written. next is the first change after the write has started, or 0.
	writing   bool
	next      uint64
	nextSince time.Time
}

// checkpoint is a version of the shard with the number of changes reported until then.
type checkpoint struct {
	version  string
	observed uint64
	// since is the time of the first change that is covered and that the watch of checkpoints has not observed.
	since time.Time
}

func newLedger() *ledger { return &ledger{open: map[client.Key]*openChange{}} }

// recordChange records a change of a key. initial is set for objects of a resync, the age of whose changes is unknown.
func (l *ledger) recordChange(key client.Key, initial bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var now time.Time
	if !initial {
		now = time.Now()
		if l.firstSince.IsZero() {
			l.firstSince = now
		}
	}
	l.observed++
	switch o := l.open[key]; {
	case o == nil:
		l.open[key] = &openChange{first: l.observed, since: now}
	case o.writing && o.next == 0:
		o.next, o.nextSince = l.observed, now
	}
}

// begin starts the replication of a key.
func (l *ledger) begin(key client.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.open[key]; o != nil {
		o.writing, o.next = true, 0
	}
}

// done completes the replication of the key as it was at begin. It returns the time since which the change has been
// waiting.
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

func (l *ledger) has(key client.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[key] != nil
}

func (l *ledger) pending() []client.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// checkpoint returns the last version up to which all changes are acknowledged, or false if it is unknown. version
// returns the version up to which the shard has reported all changes, or "" if it is unknown.
func (l *ledger) checkpoint(version func() string) (checkpoint, bool) {
	// The version must be read first, so that all changes up to it are counted.
	reached := version()
	l.mu.Lock()
	defer l.mu.Unlock()
	if reached == "" {
		l.latest, l.waiting = checkpoint{}, checkpoint{}
		return checkpoint{}, false
	}
	oldest := l.observed + 1
	for _, o := range l.open {
		oldest = min(oldest, o.first)
	}
	for range 2 { // the waiting checkpoint and, if that is complete, the current version
		if l.waiting.version == "" {
			l.waiting = checkpoint{version: reached, observed: l.observed, since: l.firstSince}
			l.firstSince = time.Time{}
		}
		if oldest <= l.waiting.observed {
			break
		}
		if !l.latest.since.IsZero() {
			l.waiting.since = l.latest.since
		}
		l.latest, l.waiting = l.waiting, checkpoint{}
	}
	return l.latest, l.latest.version != ""
}

// last returns the last result of checkpoint.
func (l *ledger) last() (checkpoint, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest, l.latest.version != ""
}

// returned is called when the watch has observed a checkpoint. It returns the time since which the first covered change
// has been waiting.
func (l *ledger) returned(at checkpoint) (since time.Time, waited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest.since.Equal(at.since) {
		l.latest.since = time.Time{}
	}
	return at.since, !at.since.IsZero()
}
