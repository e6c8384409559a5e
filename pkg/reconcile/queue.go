package reconcile

import (
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/client"
)

// keyQueue is a workqueue from which keys can be dropped.
type keyQueue[K comparable] struct {
	workqueue.TypedDelayingInterface[K]

	order   *shares[K]
	backoff workqueue.TypedRateLimiter[K]

	mu sync.Mutex
	// dropped keys are skipped when they are dequeued.
	dropped map[K]struct{}
	// delayed is the earliest time at which the workqueue adds each delayed key.
	delayed map[K]time.Time
}

func newKeyQueue[K comparable](name string, perCluster int, minBackoff, maxBackoff time.Duration) *keyQueue[K] {
	order := newShares[K](perCluster)
	plain := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: name, Clock: slowTicker{}, Queue: order})
	return &keyQueue[K]{
		TypedDelayingInterface: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Name: name, Clock: slowTicker{}, Queue: plain}),
		order:                  order, backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[K](minBackoff, maxBackoff),
		dropped: map[K]struct{}{}, delayed: map[K]time.Time{},
	}
}

func (f *keyQueue[K]) Add(key K) {
	f.mu.Lock()
	delete(f.dropped, key)
	f.mu.Unlock()
	f.TypedDelayingInterface.Add(key)
}

func (f *keyQueue[K]) AddAfter(key K, after time.Duration) {
	f.mu.Lock()
	delete(f.dropped, key)
	f.delay(key, after)
	f.mu.Unlock()
	f.TypedDelayingInterface.AddAfter(key, after)
}

// Drop implements Queue. It enqueues the key once more, so that its backoff is reset.
func (f *keyQueue[K]) Drop(key K) {
	f.mu.Lock()
	f.dropped[key] = struct{}{}
	f.mu.Unlock()
	f.TypedDelayingInterface.Add(key)
}

// again requeues a key after it was processed, unless it was dropped in the meantime.
func (f *keyQueue[K]) again(key K, after time.Duration) {
	f.mu.Lock()
	_, dropped := f.dropped[key]
	if !dropped {
		f.delay(key, after)
	}
	f.mu.Unlock()
	if !dropped {
		f.TypedDelayingInterface.AddAfter(key, after)
	}
}

// failed requeues a key with exponential backoff.
func (f *keyQueue[K]) failed(key K) { f.again(key, f.backoff.When(key)) }

// delay records when a key is added. The caller must hold the lock.
func (f *keyQueue[K]) delay(key K, after time.Duration) {
	if after <= 0 {
		return
	}
	at := time.Now().Add(after)
	if known, ok := f.delayed[key]; !ok || at.Before(known) {
		f.delayed[key] = at
	}
}

// take ends the delay of a dequeued key, and reports whether the key must be processed or was dropped.
func (f *keyQueue[K]) take(key K) (process bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, ok := f.delayed[key]; ok && !time.Now().Before(at) {
		delete(f.delayed, key)
	}
	if _, dropped := f.dropped[key]; !dropped {
		return true
	}
	if _, pending := f.delayed[key]; !pending {
		delete(f.dropped, key)
	}
	return false
}

func (f *keyQueue[K]) done(key K) {
	f.order.Done(key)
	f.Done(key)
}

// metricsInterval is roughly the usual scrape interval.
const metricsInterval = 10 * time.Second

// slowTicker reduces the frequency of tickers. Workqueues update metrics twice a second, which wakes an idle process.
type slowTicker struct{ clock.RealClock }

func (c slowTicker) NewTicker(d time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(max(d, metricsInterval))
}

// Turns assigns time slots to keys, so that work for all existing objects, e.g. after an upgrade, delays no other work.
type Turns[K comparable] struct {
	// Interval is the time between two slots.
	Interval time.Duration

	mu   sync.Mutex
	next time.Time
	of   map[K]time.Time
}

// Wait returns the time until the slot of a key. A key without a slot gets the next free one and keeps it until Forget.
func (t *Turns[K]) Wait(key K, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.of[key]
	if !ok {
		if t.next.Before(now) {
			t.next = now
		}
		at = t.next
		t.next = t.next.Add(t.Interval)
		if t.of == nil {
			t.of = map[K]time.Time{}
		}
		t.of[key] = at
	}
	return at.Sub(now)
}

// Forget releases the slot of a key.
func (t *Turns[K]) Forget(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, key)
}

// clusterOf returns the logical cluster of a key; false if the key does not identify one.
func clusterOf(key any) (logicalcluster.Name, bool) {
	switch key := key.(type) {
	case client.Key:
		return key.Cluster, true
	case logicalcluster.Name:
		return key, true
	case interface{ LogicalCluster() logicalcluster.Name }:
		return key.LogicalCluster(), true
	default:
		return "", false
	}
}

// share returns the default limit of workers for one logical cluster.
func share(workers int) int { return max(1, workers*3/4) }

// shares orders the keys of a workqueue: logical clusters are served in round-robin order, and each may use a limited
// number of workers. So neither many nor slow keys of one block the others. Keys without one are served in FIFO order.
//
// The workqueue calls Push and Pop under its own lock and adds each key at most once. Done is called without that lock.
type shares[K comparable] struct {
	most int

	mu       sync.Mutex
	clusters map[logicalcluster.Name]*clusterQueue[K]
	// turns are the queues that have keys and may use another worker, in the order of service.
	turns []*clusterQueue[K]
}

type clusterQueue[K comparable] struct {
	keys    []K
	running int
	bounded bool
	queued  bool // in turns
}

var _ workqueue.Queue[int] = &shares[int]{}

func newShares[K comparable](most int) *shares[K] {
	return &shares[K]{most: most, clusters: map[logicalcluster.Name]*clusterQueue[K]{}}
}

// Touch implements workqueue.Queue. A queued key keeps its position.
func (*shares[K]) Touch(K) {}

func (s *shares[K]) Push(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, bounded := clusterOf(key)
	l := s.clusters[cluster]
	if l == nil {
		l = &clusterQueue[K]{bounded: bounded}
		s.clusters[cluster] = l
	}
	l.keys = append(l.keys, key)
	s.queueLocked(l)
}

func (s *shares[K]) queueLocked(l *clusterQueue[K]) {
	if !l.queued && len(l.keys) > 0 && (!l.bounded || l.running < s.most) {
		l.queued = true
		s.turns = append(s.turns, l)
	}
}

// Len implements workqueue.Queue. It is a lower bound, which is 0 only if no key can be processed now.
func (s *shares[K]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.turns)
}

func (s *shares[K]) Pop() (key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.turns[0]
	s.turns[0] = nil
	s.turns = s.turns[1:]
	key = l.keys[0]
	l.keys[0] = *new(K)
	l.keys = l.keys[1:]
	l.running++
	l.queued = false
	s.queueLocked(l)
	return key
}

// Done must be called after a key was processed, by the worker that then dequeues the next one.
func (s *shares[K]) Done(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, _ := clusterOf(key)
	l := s.clusters[cluster]
	l.running--
	s.queueLocked(l)
	if l.running == 0 && len(l.keys) == 0 {
		delete(s.clusters, cluster)
	}
}
