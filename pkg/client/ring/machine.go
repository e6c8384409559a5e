package ring

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// settings are what a member needs to know to take part.
type settings struct {
	leaseDuration, renewDeadline, renewInterval, gracePeriod, rebalanceDelay, loadTimeout time.Duration
	weight, maxRanges                                                                     int
	// config is the digest of what all members have to agree about.
	config string
	// isolation is what to do with the work while cut off.
	isolation Isolation
}

// retryInterval is when to try again what has failed.
func (s settings) retryInterval() time.Duration { return s.renewInterval / 6 }

// requestTimeout bounds a request, so that there is time for others before RenewDeadline.
func (s settings) requestTimeout() time.Duration { return s.renewDeadline / 4 }

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

// part is what a table says of a member: what it has, what it is to release, and what is to
// come to it.
type part struct{ has, leaving, coming slots }

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

// next returns what to ask the server for now, or nil. busy are the slots that are being
// worked on.
func (m *machine) next(now time.Duration, busy slots) *request {
	m.turn(now, busy)
	r := m.wanted(now, busy)
	if r != nil {
		r.sent = now
		r.known = m.epoch()
	}
	return r
}

// turn has the member go from one phase to the next one.
func (m *machine) turn(now time.Duration, busy slots) {
	if m.phase == taking && m.draining && (now >= m.drainBy || m.valid && now >= m.until()) {
		m.phase = leaving
	}
	if m.phase == taking && m.table.table != nil && m.table.config != m.config && m.foreign() {
		m.err = fmt.Errorf("%w: the table says %q, this member has %q; give it another name, or stop the others first", ErrConfig, m.table.config, m.config)
		m.phase = gone
	}
	if m.phase == stopping && busy.empty() {
		m.rejoin()
	}
	if m.phase == leaving && busy.empty() && (m.own.version == "" || m.valid && now >= m.until()) {
		m.phase = gone
	}
	if m.phase == joining && m.draining {
		m.phase = gone
	}
}

// foreign reports whether a member of the table lives.
func (m *machine) foreign() bool {
	return slices.ContainsFunc(m.table.members, func(id string) bool {
		o := m.seen[id]
		return o != nil && o.renewed && !o.state.ended()
	})
}

// rejoin has the member begin as another one.
func (m *machine) rejoin() {
	m.phase, m.id = joining, m.newID()
	m.own, m.sent, m.doubt, m.reading, m.valid = lease{}, 0, false, false, false
	m.table, m.mine, m.stale, m.moving = stored{}, part{}, false, moving{}
	m.coordination.reset()
}

// lose is called when the member has lost its place: it has been expelled, or its Leases are
// not those that it knew.
func (m *machine) lose(why error) {
	m.lastErr = why
	switch m.phase {
	case taking:
		m.phase = stopping
	case leaving:
		m.own.version = "" // there is nothing to say
	default:
	}
}

func (m *machine) wanted(now time.Duration, busy slots) *request {
	switch {
	case m.phase == stopping || m.phase == gone || now < m.retryAt:
		return nil
	case m.doubt:
		return &request{verb: readOwn, lease: lease{id: m.id}}
	case m.phase == joining:
		m.sent++
		return &request{verb: createOwn, lease: lease{id: m.id, renewals: m.sent, weight: m.weight, config: m.config}}
	case m.phase == leaving:
		if !busy.empty() {
			return nil
		}
		l := m.own
		l.state = left
		return m.renewal(l)
	case m.reading && now < m.cycleSent+m.renewInterval || m.stale:
		return &request{verb: readTable}
	case m.draining && m.own.state == draining && !m.named():
		return &request{verb: deleteOwn, lease: m.own}
	}
	l := m.own
	l.loaded = m.loadedUpTo()
	if m.draining {
		l.state = draining
	}
	if closed, unsaid := m.closed(); unsaid && emptyAnd(closed, busy) {
		l.released = m.closedUpTo
	}
	if now >= m.renewAt || l != m.own {
		return m.renewal(l)
	}
	return m.coordinate(now)
}

func emptyAnd(a, b slots) bool {
	both := a.and(b)
	return both.empty()
}

// named reports whether the newest table knows the member.
func (m *machine) named() bool { return m.table.table != nil && m.table.has(m.id) }

func (m *machine) renewal(l lease) *request {
	m.sent++
	l.renewals = m.sent
	return &request{verb: renewOwn, lease: l}
}

// until returns when the member has to stop working, unless it renews before.
func (m *machine) until() time.Duration {
	if !m.valid {
		return 0
	}
	return m.validFrom + m.renewDeadline
}

// answered tells what became of the request that next returned.
func (m *machine) answered(now time.Duration, r *request, a answer) {
	if a.outcome == failed {
		m.lastErr = a.err
		m.retryAt = now + m.retryInterval()
		m.dirty = true
		if r.verb == writeTable {
			m.stale = true // it may have been written
		}
		if r.verb == deleteOwn || r.verb == renewOwn && r.lease.state == left {
			m.phase = gone // others will notice
		}
		return
	}
	m.retryAt = now
	switch r.verb {
	case createOwn, renewOwn, readOwn:
		m.answeredOwn(now, r, a)
	case deleteOwn:
		m.phase = gone
	case readTable:
		m.answeredTable(now, r, a)
	default:
		m.answeredCoordination(now, r, a)
	}
}

var (
	errExpelled = errors.New("this member was expelled: it joins anew")
	errSetBack  = errors.New("the Leases are not those that were there: this member joins anew")
)

func (m *machine) answeredOwn(now time.Duration, r *request, a answer) {
	if m.phase == stopping || m.phase == gone {
		return
	}
	switch {
	case a.outcome == notFound:
		m.doubt = false
		m.lose(errSetBack)
	case a.outcome != done:
		m.doubt = true
	case r.verb == readOwn:
		m.doubt = false
		if a.lease.state == expelled {
			m.lose(errExpelled)
			return
		}
		// What others have put on the Lease changes its version only.
		same := a.lease.renewals == m.own.renewals && a.lease.state == m.own.state && m.own.version != ""
		if !same && (a.lease.renewals <= m.own.renewals || a.lease.renewals > m.sent) {
			m.lose(errSetBack)
			return
		}
		m.own, m.renewAt = a.lease, now
	default:
		m.own = a.lease
		m.cycleSent, m.reading = r.sent, true
		m.renewAt = r.sent + m.renewInterval
		if r.lease.state == left {
			m.phase = gone
		}
	}
	if m.phase == joining && m.own.version != "" {
		m.phase = taking
	}
}

// answeredTable takes the answer of a server that has been asked for the table itself, and not
// for what it knew of it a while ago.
func (m *machine) answeredTable(now time.Duration, r *request, a answer) {
	if m.phase != taking {
		return
	}
	m.stale = false
	read := a.table
	if a.outcome == notFound {
		read = stored{}
	}
	switch epoch := read.epochOrNone(); {
	case epoch < r.known, epoch > 0 && epoch == m.epoch() && !read.equal(m.table.table):
		m.lose(errSetBack)
		return
	case epoch == 0:
		if !m.noTable {
			m.noTable, m.noTableSince, m.dirty = true, now, true
		}
	case epoch >= m.epoch():
		m.adopt(now, read)
	}
	if m.reading {
		m.reading, m.valid, m.validFrom, m.lastErr = false, true, m.cycleSent, nil
	}
}

func (s stored) epochOrNone() int64 {
	if s.table == nil {
		return 0
	}
	return s.epoch
}

// adopt takes a table that is not older than the one that is known.
func (m *machine) adopt(now time.Duration, t stored) {
	if t.epoch > m.epoch() {
		m.mine = t.part(m.id)
		m.follow(now, m.table, t)
		for slot := range slotCount {
			if !m.mine.has.has(slot) && !m.mine.leaving.has(slot) {
				m.stopAt[slot] = min(m.stopAt[slot], now)
			}
		}
		m.dirty = true
	}
	m.table, m.noTable = t, false
}

// sawTable tells of the ring's Lease as a watch shows it, which may be long ago.
func (m *machine) sawTable(now time.Duration, t stored) {
	if m.phase == taking && t.epoch > m.epoch() {
		m.adopt(now, t)
	}
}

// drain has the member give away what it has, and leave.
func (m *machine) drain(now time.Duration) {
	if !m.draining {
		m.draining, m.drainBy = true, now+max(m.leaseDuration, m.loadTimeout)+2*m.gracePeriod
	}
}
