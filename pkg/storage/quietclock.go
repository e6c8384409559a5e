package storage

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// dispatchTick is the least, and dispatchTick with a quarter more the longest,
	// time after which a watch cache looks for watches that want a bookmark.
	dispatchTick = time.Second
	// quietTick is after how long it does so while it has no watches.
	quietTick = 10 * time.Minute
)

// quietClock is the clock of one watch cache. The hub serves watches, so hardly
// anybody watches in the cache itself, yet it would wake the process every second
// to send bookmarks: its timer for that is slow while nobody watches.
type quietClock struct {
	clock.RealClock

	mu       sync.Mutex
	watching int
	timer    clock.Timer // of the cache's dispatcher
}

// watch has bookmarks come in time until done is called.
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

// NewTimer implements clock.Clock.
func (c *quietClock) NewTimer(d time.Duration) clock.Timer {
	if !isDispatchTick(d) {
		return c.RealClock.NewTimer(d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = c.RealClock.NewTimer(c.tickLocked(d))
	return dispatchTimer{c.timer, c}
}

// isDispatchTick reports whether d is what a watch cache waits for before it looks for
// watches that want a bookmark.
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

// Reset implements clock.Timer.
func (t dispatchTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.Timer.Reset(t.clock.tickLocked(d))
}
