package ring

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/shardplane/shardplane/pkg/client"
)

// slotCount is into how many parts of one size the ring of hashes is divided. A slot moves as
// a whole.
const slotCount = 256

// slotOf returns the slot that a hash is in.
func slotOf(hash uint64) int { return int(hash >> 56) }

// slots are a set of slots.
type slots [slotCount / 64]uint64

func (s *slots) add(slot int) { s[slot/64] |= 1 << (slot % 64) }

func (s *slots) has(slot int) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

func (s *slots) empty() bool { return *s == slots{} }

func (s *slots) len() int {
	n := 0
	for slot := range slotCount {
		if s.has(slot) {
			n++
		}
	}
	return n
}

// runs returns how many ranges the slots are.
func (s *slots) runs() int {
	n := 0
	for slot := range slotCount {
		if s.has(slot) && (slot == 0 || !s.has(slot-1)) {
			n++
		}
	}
	return n
}

func (s *slots) or(other slots) slots {
	result := *s
	for n := range result {
		result[n] |= other[n]
	}
	return result
}

func (s *slots) and(other slots) slots {
	result := *s
	for n := range result {
		result[n] &= other[n]
	}
	return result
}

func (s *slots) minus(other slots) slots {
	result := *s
	for n := range result {
		result[n] &^= other[n]
	}
	return result
}

// ranges returns the hashes in the slots.
func (s *slots) ranges(key client.ShardKey) client.Ranges {
	var ranges []client.Range
	for slot := range slotCount {
		if s.has(slot) {
			first := uint64(slot) << 56
			ranges = append(ranges, client.Range{First: first, Last: first | (1<<56 - 1)})
		}
	}
	if len(ranges) == 0 {
		return client.Ranges{}
	}
	// At most every other slot of 256 is in a range of its own, which are as many as there
	// may be.
	result, _ := client.NewRanges(key, ranges...)
	return result
}

// assignment is whose a slot is.
type assignment struct {
	// owner is a member, or empty if nobody has the slot.
	owner string
	// since is the epoch of the first table that has the slot move; 0 if it does not.
	since int64
	// to is the member that it moves to; empty if nobody is to have it.
	to string
}

func (a assignment) moving() bool { return a.since > 0 }

// future returns who has the slot when the move is over.
func (a assignment) future() string {
	if a.moving() {
		return a.to
	}
	return a.owner
}

// table says whose the slots are. Tables do not change once they are made.
type table struct {
	// epoch is one more than that of the table before.
	epoch int64
	// config is the digest of the configuration that all members have.
	config string
	// coordinator is the member that wrote the table.
	coordinator string
	// members are sorted.
	members []string
	slots   [slotCount]assignment
}

func (t *table) has(member string) bool {
	_, found := slices.BinarySearch(t.members, member)
	return found
}

// equal reports whether both say the same, whoever wrote it.
func (t *table) equal(other *table) bool {
	return t.epoch == other.epoch && t.config == other.config && slices.Equal(t.members, other.members) && t.slots == other.slots
}

// part returns what the table says of a member.
func (t *table) part(member string) part {
	var p part
	for slot, a := range t.slots {
		switch {
		case a.owner == member && a.moving():
			p.leaving.add(slot)
		case a.owner == member:
			p.has.add(slot)
		case a.moving() && a.to == member:
			p.coming.add(slot)
		}
	}
	return p
}

// The table as it stands in the annotation.
type (
	tableText struct {
		Epoch   int64       `json:"epoch"`
		Config  string      `json:"config"`
		Members []string    `json:"members,omitempty"`
		Ranges  []rangeText `json:"ranges"`
	}
	rangeText struct {
		// First and Last are slots of 256.
		First int       `json:"first"`
		Last  int       `json:"last"`
		Owner string    `json:"owner,omitempty"`
		Move  *moveText `json:"move,omitempty"`
	}
	moveText struct {
		To    string `json:"to,omitempty"`
		Epoch int64  `json:"epoch"`
	}
)

// String returns the table as it stands in the annotation.
func (t *table) String() string {
	text := tableText{Epoch: t.epoch, Config: t.config, Members: t.members}
	for slot, a := range t.slots {
		if slot > 0 && a == t.slots[slot-1] {
			text.Ranges[len(text.Ranges)-1].Last = slot
			continue
		}
		r := rangeText{First: slot, Last: slot, Owner: a.owner}
		if a.moving() {
			r.Move = &moveText{To: a.to, Epoch: a.since}
		}
		text.Ranges = append(text.Ranges, r)
	}
	raw, _ := json.Marshal(text) //nolint:errchkjson // strings and numbers
	return string(raw)
}

// parseTable reads what String returns. It takes nothing that a coordinator would not write,
// so that members which take a table agree about what it says.
func parseTable(raw string) (*table, error) {
	var text tableText
	if err := json.Unmarshal([]byte(raw), &text); err != nil {
		return nil, err
	}
	t := &table{epoch: text.Epoch, config: text.Config, members: text.Members}
	if t.epoch < 1 {
		return nil, fmt.Errorf("the epoch is %d", t.epoch)
	}
	for n, member := range t.members {
		if member == "" || n > 0 && member <= t.members[n-1] {
			return nil, fmt.Errorf("member %q is not in order", member)
		}
	}
	next := 0
	for _, r := range text.Ranges {
		if r.First != next || r.Last < r.First || r.Last >= slotCount {
			return nil, fmt.Errorf("the range from %d to %d follows that up to %d", r.First, r.Last, next-1)
		}
		next = r.Last + 1
		a, err := t.assignmentOf(r)
		if err != nil {
			return nil, fmt.Errorf("the range from %d to %d: %w", r.First, r.Last, err)
		}
		for slot := r.First; slot <= r.Last; slot++ {
			t.slots[slot] = a
		}
	}
	if next != slotCount {
		return nil, fmt.Errorf("the ranges end at %d", next-1)
	}
	return t, nil
}

var (
	errNoMember = errors.New("it names somebody who is no member")
	errBadMove  = errors.New("its move makes no sense")
)

func (t *table) assignmentOf(r rangeText) (assignment, error) {
	a := assignment{owner: r.Owner}
	if r.Move != nil {
		a.to, a.since = r.Move.To, r.Move.Epoch
		if a.since < 1 || a.since > t.epoch || a.owner == "" || a.owner == a.to {
			return a, errBadMove
		}
	}
	for _, member := range []string{a.owner, a.to} {
		if member != "" && !t.has(member) {
			return a, errNoMember
		}
	}
	return a, nil
}

// part is what a table says of a member: what it has, what it is to release, and what is to
// come to it.
type part struct{ has, leaving, coming slots }
