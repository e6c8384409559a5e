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
	// silent is set if the member did not renew its Lease in time. It keeps its slots and gets no others.
	silent bool
}

func (s *memberStatus) remains() bool { return s.state == active || s.state == missing }

// plan returns the next table, or the current one if nothing changes.
//
// It always completes released moves, removes the slots of ended members, and assigns slots without owners. If
// voluntary is set, members join, draining members transfer their slots, and slots are balanced.
func plan(current *table, members map[string]*memberStatus, voluntary bool) *table {
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
		if s.remains() {
			shares = append(shares, &share{id: id, weight: s.weight, receives: !s.silent && s.state == active})
		}
	}
	slices.Sort(next.members)
	slices.SortFunc(shares, func(a, b *share) int { return cmp.Compare(a.id, b.id) })

	next.advance(members)
	next.assign(newBalance(&next, shares), voluntary)
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
	for n := range t.slots {
		a := t.slots[n]
		staying := b.shares[a.future()] != nil
		if !staying && (a.owner == "" || a.moving() && a.to != "" || voluntary) && !b.assign(n) && a.owner != "" && a.future() != "" {
			b.give(n, "")
		}
	}
	if voluntary {
		b.level()
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

type share struct {
	id     string
	weight int
	// count is its number of slots after the moves. target is its part by weight, rounded to floor or ceiling.
	count, target             int
	floor, ceiling, remainder int
	// receives is false for a member whose Lease is not renewed.
	receives bool
}

func (s *share) surplus() int { return s.count - s.target }

// setTargets divides the slots so that as few as possible move: a member that has its rounded part tends to keep it.
func setTargets(shares []*share) {
	weights := 0
	for _, s := range shares {
		weights += s.weight
	}
	sum := 0
	for _, s := range shares {
		s.floor, s.remainder = slotCount*s.weight/weights, slotCount*s.weight%weights
		s.ceiling = s.floor
		if s.remainder > 0 {
			s.ceiling++
		}
		s.target = min(max(s.count, s.floor), s.ceiling)
		sum += s.target
	}
	// Members with the smallest remainder are rounded down first, and those with the fewest slots, i.e. new ones, up.
	order := slices.SortedFunc(slices.Values(shares), func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.remainder, b.remainder), cmp.Compare(a.id, b.id))
	})
	for _, s := range order {
		if sum > slotCount && s.target > s.floor {
			s.target--
			sum--
		}
	}
	slices.SortFunc(order, func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.count-a.floor, b.count-b.floor), cmp.Compare(b.remainder, a.remainder), cmp.Compare(a.id, b.id))
	})
	for _, s := range order {
		if sum < slotCount && s.target < s.ceiling {
			s.target++
			sum++
		}
	}
}

type balance struct {
	next *table
	// shares are the shares of the members that stay, by id.
	shares map[string]*share
	list   []*share
}

func newBalance(next *table, shares []*share) *balance {
	b := &balance{next: next, shares: map[string]*share{}, list: shares}
	for _, s := range shares {
		b.shares[s.id] = s
	}
	for _, a := range next.slots {
		if s := b.shares[a.future()]; s != nil {
			s.count++
		}
	}
	if len(shares) > 0 {
		setTargets(shares)
	}
	return b
}

// future returns the future owner of a slot, and "" for slots out of range.
func (b *balance) future(slot int) string {
	if slot < 0 || slot >= slotCount {
		return ""
	}
	return b.next.slots[slot].future()
}

// give assigns a slot to a member, or to none. Without a previous owner, this is immediate,
// otherwise it is a move.
func (b *balance) give(slot int, to string) {
	if s := b.shares[b.future(slot)]; s != nil {
		s.count--
	}
	if s := b.shares[to]; s != nil {
		s.count++
	}
	a := &b.next.slots[slot]
	switch a.owner {
	case "":
		a.owner = to
	case to:
		a.since, a.to = 0, ""
	default:
		// A move to a new target is a new move, because that member has not loaded the slot.
		a.to, a.since = to, b.next.epoch
	}
}

// assign gives a slot to the owner of an adjacent slot if that owner has too few slots, or else to the member that
// lacks most. It returns false if no member receives slots.
func (b *balance) assign(slot int) bool {
	var best *share
	for _, s := range b.list {
		if s.receives && (best == nil || s.surplus() < best.surplus()) {
			best = s
		}
	}
	if best == nil {
		return false
	}
	for _, neighbor := range []string{b.future(slot - 1), b.future(slot + 1)} {
		if s := b.shares[neighbor]; s != nil && s.receives && s.surplus() < 0 {
			best = s
			break
		}
	}
	b.give(slot, best.id)
	return true
}

// level moves slots from members with too many to members with too few.
func (b *balance) level() {
	for _, to := range b.list {
		for to.receives && to.surplus() < 0 {
			slot, found := b.pick(to.id)
			if !found {
				return
			}
			b.give(slot, to.id)
		}
	}
}

// pick returns the best slot for a member among the surplus slots of others. To keep the number of ranges small, it
// prefers slots that are adjacent to slots of the member. Its second preference are slots at the end of a range
// that borders on another surplus.
func (b *balance) pick(to string) (slot int, found bool) {
	best := -1
	for n := range slotCount {
		from := b.shares[b.future(n)]
		if from == nil || from.surplus() <= 0 {
			continue
		}
		score := 0
		for _, neighbor := range []string{b.future(n - 1), b.future(n + 1)} {
			switch s := b.shares[neighbor]; {
			case neighbor == to:
				score += 8
			case neighbor == from.id:
			case s != nil && s.surplus() > 0:
				score += 3
			default:
				score += 2
			}
		}
		if !b.next.slots[n].moving() {
			score++
		}
		if score > best {
			slot, best = n, score
		}
	}
	return slot, best >= 0
}
