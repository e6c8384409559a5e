package ring

import (
	"cmp"
	"slices"
)

// memberStatus is the coordinator's information about a member.
type memberStatus struct {
	lease

	// joining is set if the member is not in the table.
	joining bool
	// silent is set if the member must have stopped working because it did not renew its Lease. It keeps its slots and
	// gets no others.
	silent bool
}

func (s *memberStatus) stays() bool { return s.state == active || s.state == missing }

// plan returns the next table, or the current one if nothing changes.
//
// It always completes released moves, removes the slots of ended members, and assigns slots without owners. If
// voluntary is set, members join, draining members give away their slots, and slots are balanced.
func plan(current *table, members map[string]*memberStatus, maxRanges int, voluntary bool) *table {
	next := *current
	next.epoch++
	next.members = nil
	var shares []*share
	for id, s := range members {
		if s.joining && !voluntary {
			continue
		}
		if !s.state.ended() {
			next.members = append(next.members, id)
		}
		if s.stays() {
			shares = append(shares, &share{id: id, weight: s.weight, receives: !s.silent && s.state == active})
		}
	}
	slices.Sort(next.members)
	slices.SortFunc(shares, func(a, b *share) int { return cmp.Compare(a.id, b.id) })

	next.advance(members)
	next.assign(newBalance(&next, shares, maxRanges), voluntary)
	next.dropDrained(members)
	if next.slots == current.slots && slices.Equal(next.members, current.members) && next.config == current.config {
		return current
	}
	return &next
}

func (t *table) advance(members map[string]*memberStatus) {
	for n := range t.slots {
		a := &t.slots[n]
		if a.owner == "" {
			continue
		}
		switch owner := members[a.owner]; {
		case owner == nil: // its Lease is missing for an unknown reason
		case owner.state.ended(), a.moving() && owner.released >= a.since:
			*a = assignment{owner: a.future()}
			if next := members[a.owner]; next != nil && next.state.ended() {
				a.owner = ""
			}
		}
	}
}

// assign assigns slots without owners and, if voluntary, surplus slots.
func (t *table) assign(b *balance, voluntary bool) {
	before := t.slots
	for n := range t.slots {
		a := t.slots[n]
		staying := b.shares[a.future()] != nil
		if !staying && (a.owner == "" || a.moving() && a.to != "" || voluntary) && !b.place(n) && a.owner != "" && a.future() != "" {
			b.give(n, "")
		}
	}
	if !voluntary {
		return
	}
	b.level()
	if t.slots != before {
		b.reduceRanges()
	}
}

func (t *table) dropDrained(members map[string]*memberStatus) {
	used := map[string]bool{}
	for _, a := range t.slots {
		used[a.owner], used[a.to] = true, true
	}
	t.members = slices.DeleteFunc(t.members, func(id string) bool {
		s := members[id]
		return s != nil && s.state == draining && !used[id]
	})
}
