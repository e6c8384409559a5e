package push

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"

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

// coalescing delays the next write of a replica, to combine further changes.
const coalescing = 50 * time.Millisecond

// dirtyKeys are dirty replicas, which must be read before they are written.
type dirtyKeys struct {
	mu  sync.Mutex
	all map[client.Key]dirtyReason
}

// dirtyReason is the reason why a replica is dirty.
type dirtyReason int

const (
	// clean: the replica is as it was written.
	clean dirtyReason = iota
	// dirtyWrite: the result of the last write is unknown.
	dirtyWrite
	// dirtyDigest: the digest is not the expected one.
	dirtyDigest
)

func (d *dirtyKeys) add(key client.Key, why dirtyReason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all[key] = max(d.all[key], why)
}

func (d *dirtyKeys) take(key client.Key) dirtyReason {
	d.mu.Lock()
	defer d.mu.Unlock()
	why := d.all[key]
	delete(d.all, key)
	return why
}

// progress tracks the keys of the initial synchronization that are not replicated yet.
type progress struct {
	mu        sync.Mutex
	remaining prometheus.Gauge
	keys      sets.Set[client.Key]
}

func (p *progress) start(remaining prometheus.Gauge, keys []client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remaining, p.keys = remaining, sets.New(keys...)
	remaining.Set(float64(len(p.keys)))
}

func (p *progress) done(key client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys.Has(key) {
		p.keys.Delete(key)
		p.remaining.Set(float64(len(p.keys)))
		if len(p.keys) == 0 {
			p.keys = nil // maps do not shrink
		}
	}
}

func (p *progress) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keys)
}
