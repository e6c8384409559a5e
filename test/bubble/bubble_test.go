package bubble_test

import (
	"sync"
	"testing"
	"time"

	"github.com/shardplane/shardplane/test/bubble"
)

// Many timers of one bubble end at the same moments and are looked at by several
// goroutines, which crashes the race detector at times where it has two processors.
func TestTimers(t *testing.T) {
	for range 200 {
		bubble.Test(t, func(t *testing.T) {
			start := time.Now()
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() { watchTimers(i) })
			}
			all.Wait()
			if passed := time.Since(start); passed < 20*2*time.Millisecond || passed > time.Second {
				t.Errorf("%v passed, by a clock that is not the bubble's", passed)
			}
		})
	}
}

func watchTimers(offset int) {
	for i := range 20 {
		looked := time.NewTimer(time.Duration(1+(offset+i)%3) * time.Millisecond)
		other := time.NewTimer(time.Millisecond)
		<-other.C
		<-time.After(time.Millisecond)
		select {
		case <-looked.C:
		default:
		}
		<-time.After(time.Nanosecond)
		time.AfterFunc(time.Nanosecond, func() {})
		looked.Stop()
	}
}
