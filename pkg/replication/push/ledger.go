package push

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// ledger tracks the changes of a resource that the shard has reported and the cache server has not acknowledged yet. It
// derives the version of the shard up to which the cache server is complete.
type ledger struct {
	mu sync.Mutex
	// observed counts the reported changes.
	observed uint64
	// open are the keys with changes that are not acknowledged.
	open map[client.Key]*openChange
	// dirty are replicas that must be read before they are written.
	dirty map[client.Key]dirtyReason
	// working counts the keys of a bucket that are being replicated, and turns the starts of these.
	working [digest.Buckets]int
	turns   [digest.Buckets]uint64
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
	// initial is set if the change is part of the initial synchronization.
	initial bool
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

func newLedger() *ledger {
	return &ledger{open: map[client.Key]*openChange{}, dirty: map[client.Key]dirtyReason{}}
}

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

// markInitial makes the pending keys part of the initial synchronization and returns their number.
func (l *ledger) markInitial() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.open {
		o.initial = true
	}
	return len(l.open)
}

func (l *ledger) markDirty(key client.Key, why dirtyReason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirty[key] = max(l.dirty[key], why)
}

// begin starts the replication of a key, whose replica is clean afterwards. It returns why it was dirty. The bucket of
// the key is busy until end is called.
func (l *ledger) begin(key client.Key) (why dirtyReason, end func()) {
	bucket := digest.BucketOf(key.String())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working[bucket]++
	l.turns[bucket]++
	if o := l.open[key]; o != nil {
		o.writing, o.next = true, 0
	}
	why = l.dirty[key]
	delete(l.dirty, key)
	return why, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.working[bucket]--
	}
}

// done completes the replication of the key as it was at begin, and returns the change, if any.
func (l *ledger) done(key client.Key) openChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.open[key]
	if o == nil || !o.writing {
		return openChange{}
	}
	completed := *o
	if o.next == 0 {
		if delete(l.open, key); len(l.open) == 0 {
			l.open = map[client.Key]*openChange{} // maps do not shrink
		}
	} else {
		*o = openChange{first: o.next, since: o.nextSince}
	}
	return completed
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

// returned is called when the watch has observed a checkpoint. It returns the time of the first covered change.
func (l *ledger) returned(at checkpoint) (since time.Time, waited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest.since.Equal(at.since) {
		l.latest.since = time.Time{}
	}
	return at.since, !at.since.IsZero()
}

// shared is the state that all resources share.
type shared struct {
	config Config
	// slots limits the concurrent writes of replicas.
	slots chan struct{}
	// acknowledgements is signaled after acknowledgements that the last checkpoint does not contain, and kicked to
	// compare digests soon.
	acknowledgements, kicked chan struct{}
	// disconnections counts the events after which the cache server may contain other data, and checked those that have
	// been checked.
	disconnections, checked atomic.Int64
}

// signal wakes the reader of a channel with a buffer.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// disconnected is called if the cache server may contain other data. unchecked is true until that has been checked.
func (s *shared) disconnected() {
	s.disconnections.Add(1)
	signal(s.kicked)
}

func (s *shared) unchecked() bool { return s.disconnections.Load() != s.checked.Load() }

// fetch requests the digests of all resources, of one resource, or of one of its buckets.
func (s *shared) fetch(ctx context.Context, resource string, bucket ...int) (*digest.Response, error) {
	return digest.Fetch(ctx, s.config.replicas(), resource, bucket...)
}

// jitter spreads the requests of many shards.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4) }

func rootOf(response *digest.Response, resource string) digest.Root {
	root, ok := response.Resources[resource]
	if !ok {
		root.Digest = new(digest.Sums).Digest()
	}
	return root
}

// moment is a snapshot of the expected replicas and of the changes.
type moment struct {
	root digest.Root
	sums digest.Sums
	// busy are the buckets with pending or running changes.
	busy  [digest.Buckets]bool
	turns [digest.Buckets]uint64
}

func (l *ledger) now(expected *digest.Table[uint64]) *moment {
	l.mu.Lock()
	m := &moment{root: expected.Root(), sums: expected.Sums(), turns: l.turns}
	for bucket, n := range l.working {
		m.busy[bucket] = n > 0
	}
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, key := range open { // there may be very many
		m.busy[digest.BucketOf(key.String())] = true
	}
	return m
}

// still reports whether a bucket has not changed between two snapshots.
func (m *moment) still(later *moment, bucket int) bool {
	return !m.busy[bucket] && !later.busy[bucket] && m.turns[bucket] == later.turns[bucket]
}
