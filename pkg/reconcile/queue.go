package reconcile

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
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
	// open are the keys that are not worked off, if a source wants to know.
	open map[K]stage
}

// stage is what has become of a key that is not worked off.
type stage int

const (
	waits stage = iota
	runs
	// refused: the Gate has refused it, or ended its work, and it is not in the queue any more.
	refused
)

// track has the queue know from now on which keys are not worked off.
func (f *feed[K]) track() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = map[K]stage{}
	}
}

// note notes what has become of a key, under the lock.
func (f *feed[K]) note(key K, s stage) {
	if f.open != nil {
		f.open[key] = s
	}
}

// taken notes that the work on a key begins.
func (f *feed[K]) taken(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(key, runs)
}

// refuse notes that a key was not worked off, and does not wait, unless it was added again
// meanwhile.
func (f *feed[K]) refuse(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.open[key]; ok && s == runs {
		f.open[key] = refused
	}
}

// workedOff notes that a key was worked off, unless it was added again meanwhile.
func (f *feed[K]) workedOff(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != nil && f.open[key] == runs {
		delete(f.open, key)
	}
}

// left returns the keys that are not worked off, of those that are selected.
func (f *feed[K]) left(selects func(K) bool) []K {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []K
	for key := range f.open {
		if selects(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// takeRefused forgets the keys that the Gate refused, and returns them.
func (f *feed[K]) takeRefused(selects func(K) bool) []K {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []K
	for key, s := range f.open {
		if s == refused && selects(key) {
			keys = append(keys, key)
			delete(f.open, key)
		}
	}
	return keys
}

// newFeed returns the queue of a controller.
func newFeed[K comparable](c Config[K]) *feed[K] {
	order := newShares[K](c.PerCluster)
	plain := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: c.Name, Clock: slowTicker{}, Queue: order})
	return &feed[K]{
		TypedDelayingInterface: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Name: c.Name, Clock: slowTicker{}, Queue: plain}),
		order:                  order,
		backoff:                workqueue.NewTypedItemExponentialFailureRateLimiter[K](c.MinBackoff, c.MaxBackoff),
		dropped:                map[K]struct{}{},
		delayed:                map[K]time.Time{},
	}
}

// Add implements Queue.
func (f *feed[K]) Add(key K) {
	f.mu.Lock()
	delete(f.dropped, key)
	f.note(key, waits)
	f.mu.Unlock()
	f.TypedDelayingInterface.Add(key)
}

// AddAfter implements Queue.
func (f *feed[K]) AddAfter(key K, after time.Duration) {
	f.mu.Lock()
	delete(f.dropped, key)
	f.note(key, waits)
	f.delay(key, after)
	f.mu.Unlock()
	f.TypedDelayingInterface.AddAfter(key, after)
}

// Drop implements Queue. The key comes once more, so that it is forgotten.
func (f *feed[K]) Drop(key K) {
	f.mu.Lock()
	f.dropped[key] = struct{}{}
	delete(f.open, key)
	f.mu.Unlock()
	f.TypedDelayingInterface.Add(key)
}

// again has a key that was worked on come after a while, unless it was dropped meanwhile.
func (f *feed[K]) again(key K, after time.Duration) {
	f.mu.Lock()
	_, dropped := f.dropped[key]
	if !dropped {
		f.note(key, waits)
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
