package ring

import (
	"cmp"
	"slices"
)

// share is what a member is to have of the slots.
type share struct {
	id     string
	weight int
	// count is how many slots it has, or will have by what moves, and target how many it is to
	// have: its part by weight, rounded down or up.
	count, target  int
	floor, ceiling int
	remainder      int
	// receives reports whether it may be given slots: not while it is not heard of.
	receives bool
}

func (s *share) surplus() int { return s.count - s.target }

// setTargets divides the slots among the members, so that as few as possible move: who has its
// part, rounded down or up, keeps that where it can.
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
	// Those with the smallest remainder are rounded down first; those that lack most are
	// rounded up first, which are new.
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

// balance gives slots to members. Its zero value is of no use: make one with newBalance.
type balance struct {
	next *table
	// shares are those of the members that stay, by id.
	shares map[string]*share
	list   []*share
	ranges int // MaxRanges
}

func newBalance(next *table, shares []*share, maxRanges int) *balance {
	b := &balance{next: next, shares: map[string]*share{}, list: shares, ranges: maxRanges}
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

// future returns who is to have a slot; nobody has those before the first and after the last.
func (b *balance) future(slot int) string {
	if slot < 0 || slot >= slotCount {
		return ""
	}
	return b.next.slots[slot].future()
}

// give has a slot go to a member, or to nobody: at once if nobody has it, and by a move
// otherwise.
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
		// To somebody else it is another move: that one has not loaded it.
		a.to, a.since = to, b.next.epoch
	}
}

// place gives a slot to the member that lacks most, but rather to a neighbour that lacks some,
// so that ranges stay few. It reports whether anybody takes it.
func (b *balance) place(slot int) bool {
	var best *share
	for _, s := range b.list {
		if s.receives && (best == nil || s.surplus() < best.surplus()) {
			best = s
		}
	}
	if best == nil {
		return false
	}
	for _, neighbour := range []string{b.future(slot - 1), b.future(slot + 1)} {
		if s := b.shares[neighbour]; s != nil && s.receives && s.surplus() < 0 {
			best = s
			break
		}
	}
	b.give(slot, best.id)
	return true
}

// level moves slots from those that have too many to those that lack some.
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

// pick returns the slot that fits a member best, of those that are too many elsewhere: beside
// its own ones, and at an end of a range, rather where the next range is too long, too.
func (b *balance) pick(to string) (slot int, found bool) {
	best := -1
	for n := range slotCount {
		from := b.shares[b.future(n)]
		if from == nil || from.surplus() <= 0 {
			continue
		}
		score := 0
		for _, beside := range []string{b.future(n - 1), b.future(n + 1)} {
			switch s := b.shares[beside]; {
			case beside == to:
				score += 8
			case beside == from.id:
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

// mend moves one slot more where a member has too many ranges: one that is a range by itself,
// to both of its neighbours' owner, if both members still have their parts then.
func (b *balance) mend() {
	count := map[string]int{}
	for n := range slotCount {
		if b.future(n) != b.future(n-1) || n == 0 {
			count[b.future(n)]++
		}
	}
	for n := 1; n < slotCount-1; n++ {
		from, to := b.shares[b.future(n)], b.shares[b.future(n-1)]
		if from == nil || to == nil || from == to || b.future(n+1) != to.id || b.next.slots[n].moving() {
			continue
		}
		if max(count[from.id], count[to.id]) > b.ranges && from.count > from.floor && to.count < to.ceiling && to.receives {
			b.give(n, to.id)
			return
		}
	}
}
