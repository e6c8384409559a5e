package ringprocesses

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// span is a piece of work of a process: its start, and when its context was last observed to be
// active.
type span struct {
	process            int
	start, lastChecked int64
}

// resumeDelay is the maximum time until a resumed process observes expired contexts, because its
// timers and its work resume at once.
const resumeDelay = time.Second

// spans contains the work of all processes by hash.
type spans struct {
	mu sync.Mutex
	of [hashes][]span
	// frozen contains the intervals in which processes were frozen.
	frozen map[int][][2]int64
}

func (s *spans) add(n int, one span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[n] = append(s.of[n], one)
}

func (s *spans) addFrozen(process int, from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = map[int][][2]int64{}
	}
	s.frozen[process] = append(s.frozen[process], [2]int64{from.UnixNano(), to.UnixNano()})
}

// allProcessedSince reports whether each hash was processed after a time.
func (s *spans) allProcessedSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.of {
		if !slices.ContainsFunc(of, func(one span) bool { return one.start > t.UnixNano() }) {
			return false
		}
	}
	return true
}

// check returns overlapping spans, and the longest time without a worker of a hash, since a time.
// It drops much older spans.
func (s *spans) check(since time.Time) (overlaps []string, idle time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.of {
		of := s.of[n]
		for i := range of {
			for _, f := range s.frozen[of[i].process] {
				if of[i].start < f[0] && of[i].lastChecked > f[0] && of[i].lastChecked < f[1]+resumeDelay.Nanoseconds() {
					of[i].lastChecked = f[0]
				}
			}
		}
		slices.SortFunc(of, func(a, b span) int { return cmp.Compare(a.start, b.start) })
		var last span
		for i, one := range of {
			if i > 0 && one.process != last.process && last.lastChecked > one.start {
				overlaps = append(overlaps, fmt.Sprintf("hash %d: process %d started at %s, process %d worked until %s", n, one.process, at(one.start), last.process, at(last.lastChecked)))
			}
			if i > 0 && one.start > since.UnixNano() {
				idle = max(idle, time.Duration(one.start-last.lastChecked))
			}
			if i == 0 || one.lastChecked >= last.lastChecked {
				last = one
			}
		}
		s.of[n] = slices.DeleteFunc(of, func(one span) bool { return one.lastChecked < since.Add(-time.Minute).UnixNano() && one != last })
	}
	return overlaps, idle
}

func at(nanoseconds int64) string { return time.Unix(0, nanoseconds).Format("15:04:05.000000") }

// TestCheck checks that violations are detected, without false positives for frozen processes.
func TestCheck(t *testing.T) {
	second := func(n float64) int64 { return int64(n * 1e9) }
	fill := func() *spans {
		s := &spans{}
		for n := range hashes {
			s.add(n, span{1, second(1), second(2)})
			s.add(n, span{2, second(3), second(4)})
		}
		return s
	}
	overlaps, idle := fill().check(time.Unix(0, 0))
	require.Empty(t, overlaps)
	require.Equal(t, time.Second, idle)

	s := fill()
	s.add(5, span{1, second(3.5), second(3.6)})
	overlaps, _ = s.check(time.Unix(0, 0))
	require.Len(t, overlaps, 1)

	s = fill()
	s.add(5, span{1, second(2.1), second(10.5)})
	overlaps, _ = s.check(time.Unix(0, 0))
	require.Len(t, overlaps, 1)

	s = fill()
	s.add(5, span{1, second(2.1), second(10.5)})
	s.addFrozen(1, time.Unix(2, 5e8), time.Unix(10, 0))
	overlaps, _ = s.check(time.Unix(0, 0))
	require.Empty(t, overlaps)
	require.True(t, s.allProcessedSince(time.Unix(2, 9e8)))
	require.False(t, s.allProcessedSince(time.Unix(3, 1)))
}
