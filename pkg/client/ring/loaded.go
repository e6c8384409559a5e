package ring

import (
	"sync"

	"github.com/shardplane/shardplane/pkg/client"
)

// followers are what loads the ranges of a member.
type followers struct {
	mu sync.Mutex
	// holds are those of the informers that follow Holds.
	holds map[*func() client.Ranges]struct{}
}

// following is what Holds returns.
type following struct {
	*client.ChangingRanges

	followers *followers
}

var _ client.LoadedRanges = following{}

// Follow implements client.LoadedRanges.
func (f following) Follow(holds func() client.Ranges) (stop func()) {
	f.followers.mu.Lock()
	defer f.followers.mu.Unlock()
	key := &holds
	f.followers.holds[key] = struct{}{}
	return func() {
		f.followers.mu.Lock()
		defer f.followers.mu.Unlock()
		delete(f.followers.holds, key)
	}
}

// loaded returns the slots, of those that are coming, that all informers have.
func (f *followers) loaded(key client.ShardKey, coming slots) slots {
	f.mu.Lock()
	all := make([]func() client.Ranges, 0, len(f.holds))
	for holds := range f.holds {
		all = append(all, *holds)
	}
	f.mu.Unlock()
	for _, holds := range all {
		held := holds()
		for slot := range slotCount {
			var one slots
			if one.add(slot); coming.has(slot) && !held.Covers(one.ranges(key)) {
				coming = coming.minus(one)
			}
		}
	}
	return coming
}
