package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// CacheTiming contains the intervals at which Caches probes its caches and fails over. Zero fields have
// the defaults.
type CacheTiming struct {
	// Probe is the interval between two probes of the cache that is read (default 1s), and Timeout
	// limits each of them (2s).
	Probe, Timeout time.Duration
	// Away is for how long a cache must be unreachable before another one is read (5s).
	Away time.Duration
	// BackProbe is the interval between two probes of the caches that are preferred to the one that is
	// read (5s), and Back is for how long a preferred one must be up to date to be read again (30s).
	BackProbe, Back time.Duration
	// MarksAge is the maximum age of marks that are reused (1s).
	MarksAge time.Duration
}

func (t CacheTiming) withDefaults() CacheTiming {
	return CacheTiming{
		Probe: cmp.Or(t.Probe, time.Second), Timeout: cmp.Or(t.Timeout, 2*time.Second), Away: cmp.Or(t.Away, 5*time.Second),
		BackProbe: cmp.Or(t.BackProbe, 5*time.Second), Back: cmp.Or(t.Back, 30*time.Second), MarksAge: cmp.Or(t.MarksAge, time.Second),
	}
}

// Cache is one of the caches that have the same replicas.
type Cache struct {
	// Name is how logs name it.
	Name    string
	Factory *Factory
}

// ReadMarks reads the marks of the shards in a cache, not more than limit, or all if that is 0.
// They are nil where the cache knows no marks.
type ReadMarks func(ctx context.Context, cache *Factory, limit int64) (map[string]Mark, error)

// Caches are several caches that have the same replicas, one of which is read: the first that
// answers. Its clients and informers, which Factory makes, change to another one after 5 s without
// it, and go back to the preferred one when that has been good for 30 s: it has answered, with
// marks as late as those of the one that was read.
//
//	away for 5 s ─► the first other one that answers ─► informers compare, and go on
//	preferred one good for 30 s ─► back, the same way
type Caches struct {
	members []*cacheMember
	timing  CacheTiming
	metrics *metrics

	mu   sync.Mutex
	used int
	// changed is closed when another one is read.
	changed chan struct{}
	// known is up to where the shards have said to be complete, in any cache.
	known map[string]Mark
	// removed reports whether a shard was removed for good.
	removed func(shard string) bool
}

// cacheMember is a cache, and its marks.
type cacheMember struct {
	Cache

	marks func(ctx context.Context, limit int64) (map[string]Mark, error)

	// reading has something while somebody reads marks, of whom last and read are.
	reading chan struct{}
	last    map[string]Mark
	read    time.Time
}

func newCacheMember(cache Cache, marks func(ctx context.Context, limit int64) (map[string]Mark, error)) *cacheMember {
	return &cacheMember{Cache: cache, marks: marks, reading: make(chan struct{}, 1)}
}

// NewCaches returns the caches, the preferred one first; one at least.
func NewCaches(marks ReadMarks, members ...Cache) (*Caches, error) {
	if len(members) == 0 {
		return nil, errors.New("there is no cache to read from")
	}
	c := &Caches{timing: CacheTiming{}.withDefaults(), metrics: members[0].Factory.metrics, changed: make(chan struct{}), known: map[string]Mark{}, removed: func(string) bool { return false }}
	for _, m := range members {
		c.members = append(c.members, newCacheMember(m, func(ctx context.Context, limit int64) (map[string]Mark, error) {
			return marks(ctx, m.Factory, limit)
		}))
	}
	return c, nil
}

// Factory returns a factory whose clients, when they are made, are those of the cache that is read,
// and whose informers follow that. Its clients do not write.
func (c *Caches) Factory() *Factory {
	first := *c.members[0].Factory
	first.caches = c
	return &first
}

// SetTiming replaces the default intervals. It must be called before Run.
func (c *Caches) SetTiming(timing CacheTiming) { c.timing = timing.withDefaults() }

// SetRemoved says which shards were removed for good: that their replicas, or marks, are missing says
// nothing more. It is called before informers run.
func (c *Caches) SetRemoved(removed func(shard string) bool) { c.removed = removed }

// Name returns the name of the cache that is read.
func (c *Caches) Name() string { return c.member().Name }

func (c *Caches) member() *cacheMember {
	used, _ := c.current()
	return c.members[used]
}

// current returns which cache is read, and a channel that is closed when that changes.
func (c *Caches) current() (used int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used, c.changed
}

// Note notes what a shard has said in any of the caches.
func (c *Caches) Note(shard string, mark Mark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(shard, mark)
}

func (c *Caches) note(shard string, mark Mark) {
	if known, ok := c.known[shard]; ok {
		mark = known.later(mark)
	}
	c.known[shard] = mark
}

// marked returns up to where a shard has said to be complete.
func (c *Caches) marked(shard string) (Mark, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mark, ok := c.known[shard]
	return mark, ok
}

// marks returns up to where the shards have said to be complete.
func (c *Caches) marks() map[string]Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// marksOf returns the marks in a cache, as they were a second ago at most when it was asked for them, and not
// before what had been heard of them since. All who ask while they are being read share the next reading, as one
// of a slow cache takes longer than that.
func (c *Caches) marksOf(ctx context.Context, member int) (map[string]Mark, error) {
	m := c.members[member]
	asked, known := time.Now(), c.marks()
	select {
	case m.reading <- struct{}{}:
		defer func() { <-m.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !m.read.IsZero() && (!m.read.Before(asked) || asked.Sub(m.read) < c.timing.MarksAge && c.allReached(m.last, known)) {
		return m.last, nil
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(ctx, initialEventsTimeout)
	defer cancel()
	marks, err := m.marks(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("the marks of the shards in cache %s: %w", m.Name, err)
	}
	m.last, m.read = marks, now
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard, mark := range marks {
		c.note(shard, mark)
	}
	return marks, nil
}

// use has another cache be read.
func (c *Caches) use(ctx context.Context, member int, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	klog.FromContext(ctx).Info("Replicas of other shards are read from another cache", "cache", c.members[member].Name, "before", c.members[c.used].Name, "why", why)
	c.used = member
	close(c.changed)
	c.changed = make(chan struct{})
}

// Run decides which cache is read until ctx is done.
func (c *Caches) Run(ctx context.Context) error {
	defer c.metrics.watchCaches(c)()
	if len(c.members) == 1 {
		<-ctx.Done()
		return nil
	}
	heard, look := time.Now(), backLook{}
	for ctx.Err() == nil {
		began := time.Now()
		used, _ := c.current()
		switch err := c.members[used].answers(ctx, c.timing.Timeout); {
		case err == nil:
			heard = began // it may have gone as soon as it had answered
			if used > 0 && time.Since(look.at) >= c.timing.BackProbe {
				if better, ok := look.find(ctx, c, used); ok {
					c.use(ctx, better, "it is preferred, and has been good for a while")
					look = backLook{}
				}
			}
		case time.Since(heard) >= c.timing.Away:
			if other, ok := c.other(ctx, used); ok {
				c.use(ctx, other, fmt.Sprintf("the one before has not answered for %s: %s", time.Since(heard).Round(time.Second), err))
				heard, look = time.Now(), backLook{}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.timing.Probe - time.Since(began)):
		}
	}
	return nil
}

// other returns the first of the others that answers.
func (c *Caches) other(ctx context.Context, used int) (int, bool) {
	for n, m := range c.members {
		if n != used && m.answers(ctx, c.timing.Timeout) == nil {
			return n, true
		}
	}
	return 0, false
}

// answers asks the cache for what tells that its data can be read.
func (m *cacheMember) answers(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := m.marks(ctx, 1)
	return err
}

// backLook is what is known of the caches that are preferred to the one that is read.
type backLook struct {
	at time.Time
	// before are the marks in the cache that is read, at the last look.
	before map[string]Mark
	// since is since when a cache is good.
	since map[int]time.Time
}

// find looks at the caches that are preferred, and returns the first that was good for long enough.
func (l *backLook) find(ctx context.Context, c *Caches, used int) (int, bool) {
	l.at = time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.timing.Timeout)
	defer cancel()
	now, err := c.marksOf(ctx, used)
	before := l.before
	l.before = now
	if l.since == nil || err != nil {
		l.since = map[int]time.Time{}
		return 0, false
	}
	for n := range used {
		marks, err := c.marksOf(ctx, n)
		if err != nil || !c.allReached(marks, before) {
			delete(l.since, n)
			continue
		}
		if _, ok := l.since[n]; !ok {
			l.since[n] = l.at
		}
		if l.at.Sub(l.since[n]) >= c.timing.Back {
			return n, true
		}
	}
	return 0, false
}

// allReached reports whether marks say of all shards at least what others did, some time ago.
func (c *Caches) allReached(marks, others map[string]Mark) bool {
	for shard, other := range others {
		if mark, ok := marks[shard]; !c.removed(shard) && (!ok || !mark.reaches(other)) {
			return false
		}
	}
	return true
}
