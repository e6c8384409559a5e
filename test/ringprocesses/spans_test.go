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

// span is a piece of work of a process on a hash: when it began, and when it saw last that it
// might go on.
type span struct {
	process       int
	began, looked int64
}

// afterThaw is how long a process that goes on after it was frozen may take to see what has
// ended meanwhile: its timers and its work begin at once.
const afterThaw = time.Second

// spans are what all processes have done.
type spans struct {
	mu sync.Mutex
	of [hashes][]span
	// frozen are when processes were, from the one to the other.
	frozen map[int][][2]int64
}

func (s *spans) add(n int, one span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[n] = append(s.of[n], one)
}

func (s *spans) froze(process int, from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = map[int][][2]int64{}
	}
	s.frozen[process] = append(s.frozen[process], [2]int64{from.UnixNano(), to.UnixNano()})
}

// coveredSince reports whether each hash was worked on after a time.
func (s *spans) coveredSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.of {
		if !slices.ContainsFunc(of, func(one span) bool { return one.began > t.UnixNano() }) {
			return false
		}
	}
	return true
}

// check returns the works that overlap, and the longest time for which a hash had nobody, of
// what ended since a time. What is older than that by far is forgotten.
func (s *spans) check(since time.Time) (overlaps []string, idle time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.of {
		of := s.of[n]
		for i := range of {
			for _, f := range s.frozen[of[i].process] {
				if of[i].began < f[0] && of[i].looked > f[0] && of[i].looked < f[1]+afterThaw.Nanoseconds() {
					of[i].looked = f[0]
				}
			}
		}
		slices.SortFunc(of, func(a, b span) int { return cmp.Compare(a.began, b.began) })
		var last span
		for i, one := range of {
			if i > 0 && one.process != last.process && last.looked > one.began {
				overlaps = append(overlaps, fmt.Sprintf("hash %d: process %d began at %s, and process %d worked until %s", n, one.process, at(one.began), last.process, at(last.looked)))
			}
			if i > 0 && one.began > since.UnixNano() {
				idle = max(idle, time.Duration(one.began-last.looked))
			}
			if i == 0 || one.looked >= last.looked {
				last = one
			}
		}
		s.of[n] = slices.DeleteFunc(of, func(one span) bool { return one.looked < since.Add(-time.Minute).UnixNano() && one != last })
	}
	return overlaps, idle
}

func at(nanoseconds int64) string { return time.Unix(0, nanoseconds).Format("15:04:05.000000") }

// TestCheck holds that what is wrong is found, and what a frozen process could not see is not.
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
	s.froze(1, time.Unix(2, 5e8), time.Unix(10, 0))
	overlaps, _ = s.check(time.Unix(0, 0))
	require.Empty(t, overlaps)
	require.True(t, s.coveredSince(time.Unix(2, 9e8)))
	require.False(t, s.coveredSince(time.Unix(3, 1)))
}
