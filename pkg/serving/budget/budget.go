// Package budget bounds how much of something there is at a time, such as bytes
// or places to wait: in all, and of each of those who take it.
package budget

import "sync"

// Limits bound what is taken of a Budget at a time, in its unit.
type Limits struct {
	// Total is how much is taken in all, Each how much by one of those who take. One
	// may never take all that is left: as much is left for others as it has.
	Total, Each int64
	// Own is how much everybody gets in any case, so that nobody can take that away
	// from others by being many. So Total is exceeded by Own for each at most.
	Own int64
}

// Budget is what those with keys of type K share. It is safe for concurrent use.
type Budget[K comparable] struct {
	limits Limits

	mu    sync.Mutex
	taken int64
	by    map[K]int64
}

// New returns a budget of which nothing is taken.
func New[K comparable](limits Limits) *Budget[K] {
	return &Budget[K]{limits: limits, by: map[K]int64{}}
}

// Take takes n for who, or reports false if there is too little left. What was
// taken is given back with Give.
func (b *Budget[K]) Take(who K, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[who] + n
	left := b.limits.Total - b.taken
	if has > b.limits.Each || has > b.limits.Own && (n > left || has > max(1, left)) {
		return false
	}
	b.by[who] = has
	b.taken += n
	return true
}

// Give gives n back that who has taken.
func (b *Budget[K]) Give(who K, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	if b.by[who] -= n; b.by[who] <= 0 {
		delete(b.by, who)
	}
}

// Taken returns how much is taken in all.
func (b *Budget[K]) Taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}
