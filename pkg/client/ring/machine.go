package ring

import (
	"math"
	"time"
)

type verb string

const (
	createOwn   verb = "create own" // the member's own Lease
	renewOwn    verb = "renew own"
	readOwn     verb = "read own"
	deleteOwn   verb = "delete own"
	readTable   verb = "read table"  // the ring's Lease
	writeTable  verb = "write table" // the ring's Lease, if it still has the replaced version
	expel       verb = "expel"       // marks the Lease of another member
	replace     verb = "replace"     // creates a Lease in place of a missing one
	deleteOther verb = "delete"      // the Lease of a former member
	listAll     verb = "list"        // all Leases of the ring
)

// request is a request to the server. All writes name the version that they replace.
type request struct {
	verb verb
	// sent is the time on the member's clock.
	sent time.Duration
	// lease is written, or its version is deleted.
	lease lease
	// table is written in place of replaced, which is zero if there is no table yet.
	table    *table
	replaced stored
	// known is the epoch of the newest known table when a table was requested.
	known int64
}

type outcome int

const (
	done outcome = iota
	// conflict means that the object has another version or UID, or exists if it was to be created.
	conflict
	notFound
	// failed means that the result is unknown.
	failed
)

type response struct {
	outcome outcome
	// lease is the member's Lease after the request.
	lease  lease
	table  stored
	leases []lease
	err    error
}

type phase int

const (
	// joining: the member has no Lease yet.
	joining phase = iota
	// taking: the member takes part.
	taking
	// stopping: the member was expelled, and waits for its work to end before it joins again.
	stopping
	// leaving: the member waits for its work to end before it reports that it has left.
	leaving
	finished
)

type observed struct {
	lease

	// since is when the Lease was first observed at its version.
	since time.Duration
	// renewed reports whether a change was observed.
	renewed bool
}

const never = time.Duration(math.MaxInt64)

// machine is the state machine of a member. Its inputs are the time, the responses of the server and the observed
// Leases. Its outputs are the next request and the slots in which work is permitted.
type machine struct {
	Config

	configDigest string

	newID func() string
	id    string
	phase phase
	// err is the result of the member after an error.
	err     error
	lastErr error

	// own is the last acknowledged Lease of the member. sent is the number of the last renewal sent.
	own  lease
	sent int64
	// ownStale is set if the own Lease may have changed and must be read.
	ownStale bool
	// cycleSent is when the last renewal was sent. reading is set until the table was read after it.
	cycleSent        time.Duration
	reading          bool
	renewAt, retryAt time.Duration
	// valid is set if a renewal has succeeded, which was sent at validFrom.
	valid     bool
	validFrom time.Duration

	// table is the newest table, and mine the part of this member.
	table stored
	mine  part
	// stale is set if a newer table exists.
	stale bool
	// stopAt is the time at which the contexts of work in slots that the member no longer owns end.
	stopAt [slotCount]time.Duration
	moving

	// draining is set if the member is leaving, until drainBy at the latest.
	draining bool
	drainBy  time.Duration

	coordination
}

func newMachine(config Config, newID func() string) *machine {
	m := &machine{Config: config, configDigest: config.digest(), newID: newID, id: newID()}
	m.seen = map[string]*observed{}
	return m
}

func (m *machine) epoch() int64 { return m.table.epochOrNone() }

func (m *machine) named() bool { return m.table.table != nil && m.table.has(m.id) }

// until returns the time at which the member must stop working unless it renews before.
func (m *machine) until() time.Duration {
	if !m.valid {
		return 0
	}
	return m.validFrom + m.RenewDeadline
}

// moving is the state of moves from and to this member.
//
//	giver   works on ── the new owner has loaded, or LoadTimeout ──► closed ── work has ended ──► released
//	taker   incoming ── all incoming slots are loaded ──► loaded ── the next table ──► owned
type moving struct {
	// closedUpTo is the epoch of a table: no work begins in slots that move away since that table or before.
	closedUpTo int64
	// leaveBy is the time until which work in an outgoing slot continues if the new owner has not loaded it.
	leaveBy [slotCount]time.Duration
	// ready are incoming slots that are loaded.
	ready slots
}

// coordination is the observed state of the other members, which a coordinator needs.
type coordination struct {
	// synced is set when all Leases were observed once.
	synced bool
	seen   map[string]*observed
	// noTable is set if the server has no table, since noTableSince.
	noTable      bool
	noTableSince time.Duration
	// voluntary is set if there are changes that can wait for others, since voluntarySince.
	voluntary      bool
	voluntarySince time.Duration
	// relist is set if the observed Leases differ from those of the server.
	relist bool
}

// open returns the outgoing slots in which work continues.
func (m *machine) open() slots {
	closed, _ := m.closed()
	return m.mine.outgoing.minus(closed)
}

// closed returns the outgoing slots in which no work begins, and whether the Lease must report more as released.
func (m *machine) closed() (closed slots, unreported bool) {
	for slot := range m.mine.outgoing.all {
		if since := m.table.slots[slot].since; since <= m.closedUpTo {
			closed.add(slot)
			unreported = unreported || since > m.own.released
		}
	}
	return closed, unreported
}

// close closes outgoing slots when their new owners have loaded all moves since the same table or before, or when
// LoadTimeout has passed. Slots without a new owner are closed immediately.
func (m *machine) close(now time.Duration) {
	if m.phase != taking || m.table.table == nil || m.mine.outgoing.empty() {
		return
	}
	upTo := m.epoch()
	for slot := range m.mine.outgoing.all {
		if a := m.table.slots[slot]; a.since > m.closedUpTo && !m.loadedBy(a) && now < m.leaveBy[slot] {
			upTo = min(upTo, a.since-1)
		}
	}
	for slot := range m.mine.outgoing.all {
		if since := m.table.slots[slot].since; since > m.closedUpTo && since <= upTo {
			m.stopAt[slot] = now + m.GracePeriod
		}
	}
	m.closedUpTo = max(m.closedUpTo, upTo)
}

func (m *machine) loadedBy(a assignment) bool {
	if a.to == "" {
		return true
	}
	o := m.seen[a.to]
	return o != nil && o.loaded >= a.since
}

// loadedUpTo returns the epoch up to which incoming slots are loaded, or that in the Lease if it reports all of them.
func (m *machine) loadedUpTo() int64 {
	upTo := m.epoch()
	for slot := range m.mine.incoming.minus(m.ready).all {
		upTo = min(upTo, m.table.slots[slot].since-1)
	}
	for slot := range m.mine.incoming.all {
		if since := m.table.slots[slot].since; since > m.own.loaded && since <= upTo {
			return upTo
		}
	}
	return m.own.loaded
}

// follow sets the LoadTimeout of the slots that move to other members since a new table.
func (m *machine) follow(now time.Duration, before, after stored) {
	for slot := range m.mine.outgoing.all {
		var was assignment
		if before.table != nil {
			was = before.slots[slot]
		}
		if was.owner != m.id || was.since != after.slots[slot].since {
			m.leaveBy[slot] = now + m.LoadTimeout
		}
	}
}

// adopt accepts a table that is not older than the known one.
func (m *machine) adopt(now time.Duration, t stored) {
	if t.epoch > m.epoch() {
		m.mine = t.part(m.id)
		m.follow(now, m.table, t)
		for slot := range slotCount {
			if !m.mine.owned.has(slot) && !m.mine.outgoing.has(slot) {
				m.stopAt[slot] = min(m.stopAt[slot], now)
			}
		}
	}
	m.table, m.noTable = t, false
}

type grants struct {
	// owned are the slots in which work may begin, until a time.
	owned slots
	until time.Duration
	// stop are the slots in which the contexts of work end.
	stop slots
}

// grants returns the current grants; busy are the slots with running work.
func (m *machine) grants(now time.Duration, busy slots) grants {
	g := grants{until: m.until()}
	if m.ContinueIfIsolated {
		g.until = never
	}
	if m.phase == taking && m.valid {
		g.owned = m.mine.owned.or(m.open())
	}
	for slot := range busy.all {
		if g.owned.has(slot) && now < g.until {
			continue
		}
		if m.phase != taking || now >= g.until || now >= m.stopAt[slot] {
			g.stop.add(slot)
		}
	}
	return g
}

func (m *machine) incoming() slots {
	if m.phase == taking {
		return m.mine.incoming
	}
	return slots{}
}
