package ring

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shardplane/shardplane/pkg/client"
)

// Status is the state of the ring as observed by a member.
type Status struct {
	// ID identifies the member. It changes if the member must join again.
	ID string
	// Epoch is the epoch of the newest table; 0 if there is none.
	Epoch int64
	// Coordinator is the member that wrote the table.
	Coordinator string
	// Members are the members in the table.
	Members []Member
	// Moves are the ranges that move between members.
	Moves []Move
	// Isolated is set if the member could not renew its Lease in time.
	Isolated bool
	// Draining is set if the member is leaving.
	Draining bool
	// Waits describes what the ring is waiting for; empty if it is balanced.
	Waits string
	// LastError is the error of the last failed request.
	LastError error
}

// Member is a member of the ring.
type Member struct {
	ID     string
	Weight int
	// State is empty, draining, left, expelled, or missing if the Lease was deleted.
	State string
	// Share is the owned part of all hashes, 0 to 1.
	Share float64
}

// Move is a range that moves.
type Move struct {
	Range client.Range
	// From releases the range when its work there has ended. To is empty if no member can take it.
	From, To string
	// Epoch is the epoch of the first table with the move.
	Epoch int64
}

// Status returns the state of the ring as observed by this member.
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
			member := Member{ID: id, State: string(m.stateOf(id)), Share: float64(p.owned.or(p.outgoing).len()) / slotCount}
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

func (m *machine) waits(s Status) string {
	from, loading := map[string]bool{}, map[string]bool{}
	for _, move := range s.Moves {
		from[move.From] = true
		if o := m.seen[move.To]; move.To == m.id && m.own.loaded < move.Epoch || o != nil && o.loaded < move.Epoch {
			loading[move.To] = true
		}
	}
	switch {
	case m.phase == finished:
		return "this member is not running"
	case m.phase == stopping:
		return "this member was expelled, and will join again when its work has ended"
	case s.Isolated:
		return fmt.Sprintf("this member cannot renew its Lease: %v", m.lastErr)
	case !m.valid:
		return "this member has not written its Lease yet"
	case m.table.table == nil:
		return fmt.Sprintf("no table exists: the first one is written after %s, when no member can still use an older one", m.LeaseDuration)
	case len(loading) > 0:
		return "ranges are moving to " + strings.Join(slices.Sorted(maps.Keys(loading)), ", ") + ", where they must be loaded first"
	case len(from) > 0:
		return "ranges are moving from " + strings.Join(slices.Sorted(maps.Keys(from)), ", ") + ", which must end their work first"
	case !m.named():
		return "this member is not in the table yet"
	default:
		return ""
	}
}
