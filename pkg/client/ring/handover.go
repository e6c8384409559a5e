package ring

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// maxKeys is how many keys a hand-over names at most, of one name.
	maxKeys = 100
	// lookInterval is how often a member looks whether what comes to it is loaded.
	lookInterval = 10 * time.Millisecond
)

// followers are what loads the ranges of a member, and what hands them over.
type followers struct {
	mu sync.Mutex
	// holds are those of the informers that follow Holds.
	holds map[*func() client.Ranges]struct{}
	// givers are those that HandOver was called with, by name.
	givers map[string]*giver
}

// giver tells what is left to do.
type giver struct {
	*gain

	left func(client.Ranges) (client.Left, bool)
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

// HandOver has what was worked off not be worked off again when ranges move between members that
// have Handover Changed.
//
// left is asked what is left to do in ranges that this member gives away; it returns false if
// that is not known. Nothing begins there any more then, and nothing runs.
//
// takeOver is called as the function of OnGain is, and told what the former worker has left to
// do, or nil if that is not known, and all is to be worked on: as after a crash, with more than
// 100 keys, or if nobody there called HandOver with this name.
func (r *Ring) HandOver(name string, left func(ranges client.Ranges) (client.Left, bool), takeOver func(gained client.Ranges, left *client.Left)) (remove func()) {
	f, g := &r.followers, &giver{newGain(), left}
	f.mu.Lock()
	f.givers[name] = g
	f.mu.Unlock()
	stop := r.tellGains(g.gain, func(gained slots, handed map[int]string) {
		for !gained.empty() {
			same, text := alike(gained, handed)
			gained = gained.minus(same)
			takeOver(same.ranges(r.config.Key), r.leftOf(name, text))
		}
	})
	return func() {
		stop()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.givers[name] == g {
			delete(f.givers, name)
		}
	}
}

// alike returns slots for which one thing was said, which are of one member, and one time.
func alike(of slots, said map[int]string) (same slots, text string) {
	first := true
	for slot := range slotCount {
		if !of.has(slot) {
			continue
		}
		if first {
			text, first = said[slot], false
		}
		if said[slot] == text {
			same.add(slot)
		}
	}
	return same, text
}

// handover returns what is left to do in slots, as text.
func (r *Ring) handover(released slots) string {
	if r.config.Handover != Changed {
		return ""
	}
	r.followers.mu.Lock()
	givers := maps.Clone(r.followers.givers)
	r.followers.mu.Unlock()
	ranges, told := released.ranges(r.config.Key), map[string]client.Left{}
	for name, g := range givers {
		if !g.hasBegun(released) {
			continue
		}
		if l, ok := g.left(ranges); ok && l.Version != "" && len(l.Keys) <= maxKeys {
			told[name] = l
		}
	}
	if len(told) == 0 {
		return ""
	}
	raw, _ := json.Marshal(told) //nolint:errchkjson // strings
	return string(raw)
}

// leftOf returns what a text of handover says under a name. What cannot be read is not known.
func (r *Ring) leftOf(name, handover string) *client.Left {
	var told map[string]client.Left
	if handover == "" || r.config.Handover != Changed || json.Unmarshal([]byte(handover), &told) != nil {
		return nil
	}
	if l, ok := told[name]; ok {
		return &l
	}
	return nil
}

// lookLoaded has the machine know which of the slots that come to this member are loaded. It returns
// when to look again. Informers are asked without the lock of the ring, since their handlers may
// ask the ring.
func (d *driver) lookLoaded() time.Duration {
	var coming slots
	d.locked(func() { coming = d.machine.coming() })
	loaded := coming
	if !coming.empty() {
		loaded = d.followers.loaded(d.config.Key, coming)
	}
	d.locked(func() { d.machine.ready = loaded })
	if loaded != coming {
		return lookInterval
	}
	return never
}
