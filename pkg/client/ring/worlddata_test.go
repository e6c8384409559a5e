package ring

import (
	"maps"
	"slices"
	"time"
)

// data are the objects that members process: changes, each in a slot. The version of a change is its index.
type data struct {
	changes         []int // their slots
	done            map[int]bool
	moves           map[move]time.Duration
	swift, restored bool
}

type move struct {
	slot int
	to   string
	at   int64
}

func (d *data) undone() int { return len(d.changes) - len(d.done) }

type replica struct {
	received        int
	todo            map[int]map[int]bool
	loading, loaded map[move]bool
	owned           slots
	gain            *gain
}

func newReplica(received int) replica {
	return replica{received: received, todo: map[int]map[int]bool{}, loading: map[move]bool{}, loaded: map[move]bool{}, gain: &gain{wake: make(chan struct{}, 1)}}
}

func (w *world) change(slot int) {
	w.data.changes = append(w.data.changes, slot)
	upTo := len(w.data.changes)
	for _, n := range w.nodes {
		w.after(w.upTo(w.delay), func() { n.when(func() { n.receiveChanges(upTo) }) })
	}
}

func (n *node) receiveChanges(upTo int) {
	if n.cut || n.stalled || n.down {
		return
	}
	assigned := n.assigned()
	for ; n.replica.received < upTo; n.replica.received++ {
		if slot := n.data.changes[n.replica.received]; assigned.has(slot) {
			n.replica.add(slot, n.replica.received)
		}
	}
}

func (n *node) assigned() slots {
	assigned := n.m.mine.owned.or(n.m.mine.outgoing)
	return assigned.or(n.m.mine.incoming)
}

func (r *replica) add(slot, change int) {
	if r.todo[slot] == nil {
		r.todo[slot] = map[int]bool{}
	}
	r.todo[slot][change] = true
}

func (r *replica) next(n *node) (slot int, some bool) {
	for _, slot := range slices.Sorted(maps.Keys(r.todo)) {
		if len(r.todo[slot]) > 0 && n.g.grants.owned.has(slot) && !n.g.inWork.has(slot) {
			return slot, true
		}
	}
	return 0, false
}

func (r *replica) take(slot int) []int { return slices.Sorted(maps.Keys(r.todo[slot])) }

func (n *node) workedOff(j *job) {
	if j.ctx.Err() != nil {
		return
	}
	for _, change := range j.doing {
		delete(n.replica.todo[j.slot], change)
		if n.data.done == nil {
			n.data.done = map[int]bool{}
		}
		n.data.done[change] = true
	}
}

func (n *node) load() {
	var ready slots
	coming := n.m.incoming()
	for slot := range slotCount {
		if !coming.has(slot) {
			continue
		}
		m := move{slot, n.m.id, n.m.table.slots[slot].since}
		if n.replica.loaded[m] {
			ready.add(slot)
		}
	}
	n.m.ready = ready
	if missing := coming.minus(ready); !missing.empty() {
		epoch := n.m.epoch()
		if key := (move{-1, n.m.id, epoch}); !n.replica.loading[key] {
			n.replica.loading[key] = true
			takes := n.upTo(2 * time.Second)
			if !n.data.swift && n.rand.IntN(20) == 0 {
				takes = time.Minute
			}
			table := n.m.table
			n.after(takes, func() {
				n.when(func() {
					for slot := range slotCount {
						if missing.has(slot) {
							n.replica.loaded[move{slot, n.m.id, table.slots[slot].since}] = true
						}
					}
				})
			})
		}
	}
}

func (n *node) gain() {
	var owned slots
	if n.m.phase == taking && n.local() < n.g.grants.until {
		owned = n.g.grants.owned
	}
	gained := owned.minus(n.replica.owned)
	n.replica.owned = owned
	n.replica.gain.note(gained)
	if !gained.empty() {
		n.after(n.upTo(2*time.Second), func() { n.when(n.takeOver) })
	}
	assigned := n.assigned()
	for slot := range n.replica.todo {
		if !assigned.has(slot) {
			delete(n.replica.todo, slot)
		}
	}
}

func (n *node) takeOver() {
	gained := n.replica.gain.take()
	for change, slot := range n.data.changes {
		if gained.has(slot) {
			n.replica.add(slot, change)
		}
	}
}

// checkMoves checks that a slot is not released before the new owner has loaded it, unless LoadTimeout has passed.
func (w *world) checkMoves(before stored, after *table) {
	if w.data.moves == nil {
		w.data.moves = map[move]time.Duration{}
	}
	for slot, is := range after.slots {
		if is.moving() {
			if m := (move{slot, is.to, is.since}); w.data.moves[m] == 0 {
				w.data.moves[m] = w.now
			}
		}
		if before.table == nil || w.data.restored {
			continue
		}
		was := before.slots[slot]
		if !was.moving() || was.to == "" || is.owner != was.to || w.leases[was.owner].state.ended() || w.leases[was.owner].id == "" {
			continue
		}
		m := move{slot, was.to, was.since}
		waited := time.Duration(1.05 * float64(w.now-w.data.moves[m]))
		for _, n := range w.nodes {
			if n.m.id == was.to && !n.replica.loaded[m] && waited < w.settings.LoadTimeout {
				w.failf("slot %d moved after %s, but is not loaded", slot, waited)
			}
		}
	}
}
