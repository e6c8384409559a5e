package ring

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
)

// slotCount is the number of slots, i.e. equal parts of the ring of hashes. A slot is the unit of moves.
const slotCount = 256

func slotOf(hash uint64) int { return int(hash >> 56) }

type slots [slotCount / 64]uint64

func (s *slots) add(slot int)     { s[slot/64] |= 1 << (slot % 64) }
func (s slots) has(slot int) bool { return s[slot/64]&(1<<(slot%64)) != 0 }
func (s slots) empty() bool       { return s == slots{} }

// all yields the slots in order.
func (s slots) all(yield func(int) bool) {
	for slot := range slotCount {
		if s.has(slot) && !yield(slot) {
			return
		}
	}
}

func (s slots) len() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// runs returns the number of ranges.
func (s slots) runs() int {
	n := 0
	for slot := range s.all {
		if slot == 0 || !s.has(slot-1) {
			n++
		}
	}
	return n
}

func (s slots) or(other slots) slots {
	for n := range s {
		s[n] |= other[n]
	}
	return s
}

func (s slots) and(other slots) slots {
	for n := range s {
		s[n] &= other[n]
	}
	return s
}

func (s slots) minus(other slots) slots {
	for n := range s {
		s[n] &^= other[n]
	}
	return s
}

func (s slots) ranges(key client.ShardKey) client.Ranges {
	var ranges []client.Range
	for slot := range s.all {
		first := uint64(slot) << 56
		ranges = append(ranges, client.Range{First: first, Last: first | (1<<56 - 1)})
	}
	if len(ranges) == 0 {
		return client.Ranges{}
	}
	// It cannot fail: at most every other slot is in a range of its own, which is the maximum number of ranges.
	result, _ := client.NewRanges(key, ranges...)
	return result
}

type assignment struct {
	// owner is a member, or empty.
	owner string
	// since is the epoch of the first table with the current move; 0 without a move.
	since int64
	// to is the target of the move; empty if no member can take the slot.
	to string
}

func (a assignment) moving() bool { return a.since > 0 }

func (a assignment) future() string {
	if a.moving() {
		return a.to
	}
	return a.owner
}

// table contains the owners of the slots. Tables are immutable.
type table struct {
	epoch int64
	// config is the digest that all members share.
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

// equal compares everything except the coordinator.
func (t *table) equal(other *table) bool {
	return t.epoch == other.epoch && t.config == other.config && slices.Equal(t.members, other.members) && t.slots == other.slots
}

func (t *table) part(member string) part {
	var p part
	for slot, a := range t.slots {
		switch {
		case a.owner == member && a.moving():
			p.outgoing.add(slot)
		case a.owner == member:
			p.owned.add(slot)
		case a.moving() && a.to == member:
			p.incoming.add(slot)
		}
	}
	return p
}

// The JSON format of a table in the annotation.
type (
	tableText struct {
		Epoch   int64       `json:"epoch"`
		Config  string      `json:"config"`
		Members []string    `json:"members,omitempty"`
		Ranges  []rangeText `json:"ranges"`
	}
	rangeText struct {
		// First and Last are slots.
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

// String returns the table in the format of the annotation.
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

// parseTable parses the result of String, and rejects everything that a coordinator would not write.
func parseTable(raw string) (*table, error) {
	var text tableText
	if err := json.Unmarshal([]byte(raw), &text); err != nil {
		return nil, err
	}
	t := &table{epoch: text.Epoch, config: text.Config, members: text.Members}
	if t.epoch < 1 {
		return nil, fmt.Errorf("invalid epoch %d", t.epoch)
	}
	for n, member := range t.members {
		if member == "" || n > 0 && member <= t.members[n-1] {
			return nil, fmt.Errorf("member %q is not in order", member)
		}
	}
	next := 0
	for _, r := range text.Ranges {
		if r.First != next || r.Last < r.First || r.Last >= slotCount {
			return nil, fmt.Errorf("invalid range from %d to %d after the one up to %d", r.First, r.Last, next-1)
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
	errNoMember = errors.New("unknown member")
	errBadMove  = errors.New("invalid move")
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

// part is the part of a table that concerns a member.
type part struct {
	owned, incoming slots
	// outgoing are slots that move to other members. They remain loaded until the move is
	// completed.
	outgoing slots
}

// isolated returns the slots if the Lease was not renewed in time: none may be worked on.
func (p part) isolated() part {
	return part{incoming: p.incoming.or(p.owned), outgoing: p.outgoing}
}

const (
	// ringLabel is the name of the ring, on all of its Leases.
	//
	//reference:metadata Lease | rings
	ringLabel = "ring.shardplane.io/ring"
	// tableAnnotation is the table that assigns the slots to members.
	//
	//reference:metadata Lease of a ring | coordinator of the ring
	tableAnnotation = "ring.shardplane.io/table"

	// weightAnnotation is the weight of the member in the assignment of slots.
	//
	//reference:metadata Lease of a member | the member
	weightAnnotation = "ring.shardplane.io/weight"
	// configAnnotation is the configuration of the member, which must be the same for all members.
	//
	//reference:metadata Lease of a member | the member
	configAnnotation = "ring.shardplane.io/config"
	// stateAnnotation is the state of the member, e.g. draining. Active members have none.
	//
	//reference:metadata Lease of a member | the member; coordinator of the ring
	stateAnnotation = "ring.shardplane.io/state"
	// releasedAnnotation is the epoch of the table up to which the member has ended its work in outgoing slots.
	//
	//reference:metadata Lease of a member | the member
	releasedAnnotation = "ring.shardplane.io/released"
	// loadedAnnotation is the epoch of the table up to which the member has loaded its incoming slots.
	//
	//reference:metadata Lease of a member | the member
	loadedAnnotation = "ring.shardplane.io/loaded"
	// renewalsAnnotation is the number of renewals by the member.
	//
	//reference:metadata Lease of a member | the member
	renewalsAnnotation = "ring.shardplane.io/renewals"
)

const maxWeight = 1000

type state string

const (
	active state = ""
	// draining is a member that gives its slots to others and leaves.
	draining state = "draining"
	// left is a member that has ended its work.
	left state = "left"
	// expelled is a member that was expelled by a coordinator.
	expelled state = "expelled"
	// missing is the state of a Lease that replaces a deleted one. Because the Lease is not renewed, the member is
	// expelled.
	missing state = "missing"
)

func (s state) ended() bool { return s == left || s == expelled }

type lease struct {
	id string
	// uid and version are the UID and the resourceVersion of the Lease; they are empty if it does
	// not exist.
	uid     types.UID
	version string
	// renewals counts the writes of the member, which recognizes its own writes by it if responses were lost.
	renewals int64
	weight   int
	config   string
	state    state
	// released and loaded are epochs of tables. The member has ended its work in all slots that a table up to
	// released moves to other members. It begins no work in them before a later table assigns them again.
	released, loaded int64
}

func leaseName(ring, id string) string { return ring + "-" + id }

func (l lease) object(ring string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	annotations := map[string]string{
		weightAnnotation:   strconv.Itoa(l.weight),
		configAnnotation:   l.config,
		renewalsAnnotation: strconv.FormatInt(l.renewals, 10),
	}
	if l.state != active {
		annotations[stateAnnotation] = string(l.state)
	}
	if l.released > 0 {
		annotations[releasedAnnotation] = strconv.FormatInt(l.released, 10)
	}
	if l.loaded > 0 {
		annotations[loadedAnnotation] = strconv.FormatInt(l.loaded, 10)
	}
	meta := metav1.ObjectMeta{Name: leaseName(ring, l.id), UID: l.uid, ResourceVersion: l.version, Annotations: annotations}
	return leaseObject(meta, ring, l.id, duration, now)
}

func leaseObject(meta metav1.ObjectMeta, ring, holder string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	meta.Labels = map[string]string{ringLabel: ring}
	seconds := int32((duration + time.Second - 1) / time.Second)
	return &coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now},
	}}
}

// leaseOf parses the Lease of a member. Invalid values are ignored: such a member gets no work and disturbs no other.
func leaseOf(ring string, object *coordinationv1.Lease) lease {
	number := func(annotation string) int64 {
		n, _ := strconv.ParseInt(object.Annotations[annotation], 10, 64)
		return n
	}
	id, _ := strings.CutPrefix(object.Name, leaseName(ring, ""))
	return lease{
		id: id, uid: object.UID, version: object.ResourceVersion,
		renewals: number(renewalsAnnotation), released: number(releasedAnnotation), loaded: number(loadedAnnotation),
		weight: min(max(int(number(weightAnnotation)), 1), maxWeight),
		config: object.Annotations[configAnnotation], state: state(object.Annotations[stateAnnotation]),
	}
}

type stored struct {
	*table

	uid     types.UID
	version string
}

func (s stored) epochOrNone() int64 {
	if s.table == nil {
		return 0
	}
	return s.epoch
}

func (t *table) object(ring string, replaced stored, duration time.Duration, now time.Time) *coordinationv1.Lease {
	meta := metav1.ObjectMeta{
		Name: ring, UID: replaced.uid, ResourceVersion: replaced.version, Annotations: map[string]string{tableAnnotation: t.String()},
	}
	return leaseObject(meta, ring, t.coordinator, duration, now)
}

func tableOf(object *coordinationv1.Lease) (stored, error) {
	t, err := parseTable(object.Annotations[tableAnnotation])
	if err != nil {
		return stored{}, fmt.Errorf("annotation %s of Lease %s is invalid: %w: delete the Lease to make all members join again", tableAnnotation, object.Name, err)
	}
	if object.Spec.HolderIdentity != nil {
		t.coordinator = *object.Spec.HolderIdentity
	}
	return stored{t, object.UID, object.ResourceVersion}, nil
}
