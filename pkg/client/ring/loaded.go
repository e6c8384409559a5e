package ring

import (
	"sync"

	"github.com/shardplane/shardplane/pkg/client"
)

type followers struct {
	mu sync.Mutex
	// holds are the functions of the informers that follow LoadedRanges.
	holds map[*func() client.Ranges]struct{}
}

type following struct {
	*client.ChangingRanges

	followers *followers
}

var _ client.LoadedRanges = following{}

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

// loaded returns the incoming slots that all informers have loaded.
func (f *followers) loaded(key client.ShardKey, coming slots) slots {
	f.mu.Lock()
	all := make([]func() client.Ranges, 0, len(f.holds))
	for holds := range f.holds {
		all = append(all, *holds)
	}
	f.mu.Unlock()
	for _, holds := range all {
		held := holds()
		for slot := range coming.all {
			var one slots
			if one.add(slot); !held.Covers(one.ranges(key)) {
				coming = coming.minus(one)
			}
		}
	}
	return coming
}
