package storage

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// dispatchTick is the minimum interval at which a watch cache checks for watches that need a bookmark; the
	// maximum is a quarter more.
	dispatchTick = time.Second
	// quietTick is the interval while the cache has no watches.
	quietTick = 10 * time.Minute
)

// quietClock is the clock of one watch cache. The cache has few watches, because the hub serves them,
// but its bookmark timer would wake the process every second. Without watches, this timer is slow.
type quietClock struct {
	clock.RealClock

	mu       sync.Mutex
	watching int
	timer    clock.Timer // of the cache's dispatcher
}

// watch enables timely bookmarks until done is called.
func (c *quietClock) watch() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching++
	if c.watching == 1 && c.timer != nil {
		c.timer.Reset(dispatchTick)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watching--
	}
}

func (c *quietClock) NewTimer(d time.Duration) clock.Timer {
	if !isDispatchTick(d) {
		return c.RealClock.NewTimer(d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = c.RealClock.NewTimer(c.tickLocked(d))
	return dispatchTimer{c.timer, c}
}

// isDispatchTick reports whether d is the interval of the bookmark timer.
func isDispatchTick(d time.Duration) bool {
	return d >= dispatchTick && d <= dispatchTick+dispatchTick/4
}

func (c *quietClock) tickLocked(d time.Duration) time.Duration {
	if c.watching > 0 {
		return d
	}
	return quietTick
}

// dispatchTimer is the timer of the cache's dispatcher.
type dispatchTimer struct {
	clock.Timer
	clock *quietClock
}

func (t dispatchTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.Timer.Reset(t.clock.tickLocked(d))
}
