package reconcile

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// feed is the queue of a controller: a workqueue out of which keys can be dropped.
type feed[K comparable] struct {
	workqueue.TypedDelayingInterface[K]

	order   *shares[K]
	backoff workqueue.TypedRateLimiter[K]

	mu sync.Mutex
	// dropped are keys that are not to be worked on when they are next.
	dropped map[K]struct{}
	// delayed says when those come that wait for a while, as the workqueue has it: the
	// soonest of several times.
	delayed map[K]time.Time
}

// newFeed returns the queue of a controller.
func newFeed[K comparable](name string, perCluster int, minBackoff, maxBackoff time.Duration) *feed[K] {
	order := newShares[K](perCluster)
	plain := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: name, Clock: slowTicker{}, Queue: order})
	return &feed[K]{
		TypedDelayingInterface: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Name: name, Clock: slowTicker{}, Queue: plain}),
		order:                  order,
		backoff:                workqueue.NewTypedItemExponentialFailureRateLimiter[K](minBackoff, maxBackoff),
		dropped:                map[K]struct{}{},
		delayed:                map[K]time.Time{},
	}
}

// Add implements Queue.
func (f *feed[K]) Add(key K) {
	f.mu.Lock()
	delete(f.dropped, key)
	f.mu.Unlock()
	f.TypedDelayingInterface.Add(key)
}

// AddAfter implements Queue.
func (f *feed[K]) AddAfter(key K, after time.Duration) {
	f.mu.Lock()
	delete(f.dropped, key)
	f.delay(key, after)
	f.mu.Unlock()
	f.TypedDelayingInterface.AddAfter(key, after)
}

// Drop implements Queue. The key comes once more, so that it is forgotten.
func (f *feed[K]) Drop(key K) {
	f.mu.Lock()
	f.dropped[key] = struct{}{}
	f.mu.Unlock()
	f.TypedDelayingInterface.Add(key)
}

// again has a key that was worked on come after a while, unless it was dropped meanwhile.
func (f *feed[K]) again(key K, after time.Duration) {
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

// failed has a key come again after a wait that doubles each time.
func (f *feed[K]) failed(key K) { f.again(key, f.backoff.When(key)) }

// delay notes when a key comes, under the lock.
func (f *feed[K]) delay(key K, after time.Duration) {
	if after <= 0 {
		return
	}
	at := time.Now().Add(after)
	if known, ok := f.delayed[key]; !ok || at.Before(known) {
		f.delayed[key] = at
	}
}

// wanted reports whether a key that has come is to be worked on.
func (f *feed[K]) wanted(key K) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, ok := f.delayed[key]; ok && !time.Now().Before(at) {
		delete(f.delayed, key)
	}
	if _, dropped := f.dropped[key]; !dropped {
		return true
	}
	if _, comes := f.delayed[key]; !comes {
		delete(f.dropped, key)
	}
	return false
}

// done ends the work on a key.
func (f *feed[K]) done(key K) {
	f.order.Done(key)
	f.Done(key)
}

// metricsInterval is how often a queue updates its metrics, about as often as
// somebody reads them.
const metricsInterval = 10 * time.Second

// slowTicker is the clock of queues: they use tickers only to update metrics,
// twice a second, which wakes an idle process for each queue, and to look again
// at what is delayed, in case a timer got lost.
type slowTicker struct{ clock.RealClock }

// NewTicker implements clock.WithTicker.
func (c slowTicker) NewTicker(d time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(max(d, metricsInterval))
}
