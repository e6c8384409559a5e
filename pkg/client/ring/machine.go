package ring

import (
	"math"
	"time"
)

// verb is what a request does.
type verb string

const (
	createOwn   verb = "create own"  // the member's own Lease
	renewOwn    verb = "renew own"   // the same
	readOwn     verb = "read own"    // the same
	deleteOwn   verb = "delete own"  // the same
	readTable   verb = "read table"  // the ring's Lease
	writeTable  verb = "write table" // the same, in place of what version says
	expel       verb = "expel"       // the Lease of another member
	replace     verb = "replace"     // puts a Lease in the place of one that is missing
	deleteOther verb = "delete"      // the Lease of one that is no member any more
	listAll     verb = "list"        // all Leases of the ring
)

// request is what a member asks the server for. All writes name the version that they
// replace.
type request struct {
	verb verb
	// sent is when, by the member's clock.
	sent time.Duration
	// lease is what is written, or whose version is deleted.
	lease lease
	// table is written in place of replaced, which is nil if there is no table yet.
	table    *table
	replaced stored
	// known is the epoch that was known when a table was asked for.
	known int64
}

// outcome is how a request ended.
type outcome int

const (
	done outcome = iota
	// conflict: what was to be replaced has another version, or is another object.
	conflict
	// exists: what was to be created is there.
	exists
	// notFound: there is no such Lease.
	notFound
	// failed: nothing is known, least of all whether it was done.
	failed
)

// answer is what became of a request.
type answer struct {
	outcome outcome
	// lease is the member's Lease as the server has it now.
	lease lease
	// table is the ring's.
	table stored
	// leases are all members'.
	leases []lease
	err    error
}

// phase is what a member is doing.
type phase int

const (
	// joining: it has no Lease yet.
	joining phase = iota
	// taking: it takes part.
	taking
	// stopping: it has lost its place, and waits for its work to end before it joins anew.
	stopping
	// leaving: it has to go, and waits for its work to end before it says so.
	leaving
	// gone: it is over.
	gone
)

// observed is what a member sees of another one.
type observed struct {
	lease

	// since is when the Lease was first seen at its version.
	since time.Duration
	// renewed reports whether it was seen to change.
	renewed bool
}

const never = time.Duration(math.MaxInt64)

// machine is a member of a ring: what it knows, and what it does next. It is all of the
// protocol, and only that: it is told the time, what the server answers and what is seen of
// the Leases, and says what to ask the server for and what may be worked on. It has one
// request at a time.
type machine struct {
	settings

	newID func() string
	id    string
	phase phase
	// err is why it is gone, if it should not be.
	err error
	// lastErr is why the last request failed.
	lastErr error

	// own is the member's Lease as it was acknowledged last, and sent the number of the last
	// renewal that was sent.
	own  lease
	sent int64
	// doubt says that the own Lease is not as it was known, and is to be read.
	doubt bool
	// cycleSent is when the renewal was sent to which the table has still to be read, and
	// reading says that it has.
	cycleSent time.Duration
	reading   bool
	// renewAt is when to renew, and retryAt when to try again what failed.
	renewAt, retryAt time.Duration
	// valid says that a renewal has succeeded, and validFrom when that was sent.
	valid     bool
	validFrom time.Duration

	// table is the newest table that was read, and mine what it says of this member.
	table stored
	mine  part
	// stale says that it is known not to be the newest one.
	stale bool
	// stopAt says when the contexts end of work in slots that the member has no more.
	stopAt [slotCount]time.Duration
	moving

	// draining says that the member is to leave, until drainBy.
	draining bool
	drainBy  time.Duration

	coordination
}

func newMachine(s settings, newID func() string) *machine {
	m := &machine{settings: s, newID: newID, id: newID()}
	m.coordination.reset()
	m.seen = map[string]*observed{}
	m.missingSince = map[string]time.Duration{}
	return m
}

func (m *machine) epoch() int64 {
	if m.table.table == nil {
		return 0
	}
	return m.table.epoch
}

// named reports whether the newest table knows the member.
func (m *machine) named() bool { return m.table.table != nil && m.table.has(m.id) }

// until returns when the member has to stop working, unless it renews before.
func (m *machine) until() time.Duration {
	if !m.valid {
		return 0
	}
	return m.validFrom + m.renewDeadline
}

// moving is how slots move from this member, and to it.
//
//	giver   works on ── the other one has loaded, or LoadTimeout ──► closed ── work has ended ──► released
//	taker   coming   ── all that comes is loaded ──► loaded ── the next table ──► has
type moving struct {
	// closedUpTo is the epoch of a table: nothing begins any more in slots that move away since
	// that one or before.
	closedUpTo int64
	// leaveBy is until when work goes on in a slot that moves away, and that the other one
	// has not loaded.
	leaveBy [slotCount]time.Duration
	// ready are slots that come to this member and are loaded, as far as it was told.
	ready slots
}

// coordination is what a member knows of the others, and needs when it is their coordinator.
type coordination struct {
	// synced says that all Leases have been seen once.
	synced bool
	seen   map[string]*observed
	// missingSince is when a member of the table was first found without a Lease.
	missingSince map[string]time.Duration
	// noTable says that the server has no table, and noTableSince since when that is known.
	noTable      bool
	noTableSince time.Duration
	// voluntary says that there is something to change that can wait for others of its kind,
	// and voluntarySince since when.
	voluntary      bool
	voluntarySince time.Duration
	// dirty says that something has changed since the coordinator looked last, and checkAt
	// when it looks again in any case.
	dirty   bool
	checkAt time.Duration
	// relist says that what was seen is not what the server has.
	relist bool
}

// reset forgets what a member with another id has no use for. What was seen of others stays.
func (c *coordination) reset() {
	c.noTable, c.voluntary, c.relist, c.dirty, c.checkAt = false, false, false, true, never
}
