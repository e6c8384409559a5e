package ring

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shardplane/shardplane/pkg/client"
)

// Status is what a member knows of its ring.
type Status struct {
	// ID is the member's, which changes if it has to join anew.
	ID string
	// Epoch is that of the newest table the member has read; 0 if there is none.
	Epoch int64
	// Coordinator is the member that wrote it.
	Coordinator string
	// Members are all members of that table.
	Members []Member
	// Moves are the ranges that go from one member to another.
	Moves []Move
	// Isolated says that the member could not renew its Lease in time.
	Isolated bool
	// Draining says that it is leaving.
	Draining bool
	// Waits says what it takes until all is as it should be; empty if all is.
	Waits string
	// LastError is why the last request failed that did.
	LastError error
}

// Member is a member of the ring.
type Member struct {
	ID     string
	Weight int
	// State is empty, or draining, left, expelled, or missing, if its Lease was deleted.
	State string
	// Share is its part of all hashes, 0 to 1.
	Share float64
}

// Move is a range that moves.
type Move struct {
	Range client.Range
	// From releases the range when its work there has ended. To is empty if nobody is to
	// have it.
	From, To string
	// Epoch is that of the first table with the move.
	Epoch int64
}

// Status returns what the member knows.
func (r *Ring) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.machine
	s := Status{
		ID: m.id, Epoch: m.epoch(), Draining: m.draining, LastError: m.lastErr,
		Isolated: m.phase == taking && m.valid && r.now() >= m.until(),
	}
	if t := m.table.table; t != nil {
		s.Coordinator = t.coordinator
		for _, id := range t.members {
			p := t.part(id)
			all := p.has.or(p.leaving)
			member := Member{ID: id, State: string(m.stateOf(id)), Share: float64(all.len()) / slotCount}
			if o := m.seen[id]; o != nil {
				member.Weight = o.weight
			}
			s.Members = append(s.Members, member)
		}
		s.Moves = t.moves()
	}
	s.Waits = m.waits(s)
	return s
}

// moves returns the ranges that move.
func (t *table) moves() []Move {
	var moves []Move
	for slot, a := range t.slots {
		first := uint64(slot) << 56
		last := first | (1<<56 - 1)
		switch {
		case !a.moving():
		case slot > 0 && a == t.slots[slot-1]:
			moves[len(moves)-1].Range.Last = last
		default:
			moves = append(moves, Move{client.Range{First: first, Last: last}, a.owner, a.to, a.since})
		}
	}
	return moves
}

// waits says what it takes until all is as it should be.
func (m *machine) waits(s Status) string {
	from, loading := map[string]bool{}, map[string]bool{}
	for _, move := range s.Moves {
		from[move.From] = true
		if o := m.seen[move.To]; move.To == m.id && m.own.loaded < move.Epoch || o != nil && o.loaded < move.Epoch {
			loading[move.To] = true
		}
	}
	switch {
	case m.phase == gone:
		return "this member does not run"
	case m.phase == stopping:
		return "this member lost its place, and joins anew when its work has ended"
	case s.Isolated:
		return fmt.Sprintf("this member cannot renew its Lease: %v", m.lastErr)
	case !m.valid:
		return "this member has not written its Lease yet"
	case m.table.table == nil:
		return fmt.Sprintf("there is no table: the first one is written when nobody can be working by an older one, after %s", m.leaseDuration)
	case len(loading) > 0:
		return "ranges move to " + strings.Join(slices.Sorted(maps.Keys(loading)), ", ") + ", where they are loaded first"
	case len(from) > 0:
		return "ranges move away from " + strings.Join(slices.Sorted(maps.Keys(from)), ", ") + ", which end their work there first"
	case !m.named():
		return "this member is no part of the table yet"
	default:
		return ""
	}
}
