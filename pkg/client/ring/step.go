package ring

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

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

func (m *machine) renewal(l lease) *request {
	m.sent++
	l.renewals = m.sent
	return &request{verb: renewOwn, lease: l}
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
