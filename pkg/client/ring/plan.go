package ring

import (
	"cmp"
	"slices"
)

// standing is what the coordinator knows of a member.
type standing struct {
	lease

	// joining says that no table names the member yet.
	joining bool
	// silent says that the member was not heard of for so long that it works no more. It
	// keeps what it has, and is given nothing.
	silent bool
}

// stays reports whether the member is to have slots.
func (s *standing) stays() bool { return s.state == active || s.state == missing }

// plan returns the table that follows, or the same one if nothing is to change.
//
// What is due is in it at once: moves end whose slots were released, who has ended loses what
// it had, and slots that nobody has are given away. With voluntary, members join, those that
// drain give away what they have, and all get their parts.
func plan(current *table, members map[string]*standing, maxRanges int, voluntary bool) *table {
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

// advance ends what the members have ended.
func (t *table) advance(members map[string]*standing) {
	for n := range t.slots {
		a := &t.slots[n]
		if a.owner == "" {
			continue
		}
		switch owner := members[a.owner]; {
		case owner == nil: // its Lease is away, and it is not known why
		case owner.state.ended(), a.moving() && owner.released >= a.since:
			*a = assignment{owner: a.future()}
			if next := members[a.owner]; next != nil && next.state.ended() {
				a.owner = ""
			}
		}
	}
}

// assign gives away what nobody is to have, and, with voluntary, what somebody is to give.
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
		b.mend()
	}
}

// dropDrained drops the members that have given away all, and leave.
func (t *table) dropDrained(members map[string]*standing) {
	used := map[string]bool{}
	for _, a := range t.slots {
		used[a.owner], used[a.to] = true, true
	}
	t.members = slices.DeleteFunc(t.members, func(id string) bool {
		s := members[id]
		return s != nil && s.state == draining && !used[id]
	})
}
