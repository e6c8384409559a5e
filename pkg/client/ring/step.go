package ring

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// next returns the next request for the server, or nil. busy are the slots with running work.
func (m *machine) next(now time.Duration, busy slots) *request {
	m.updatePhase(now, busy)
	r := m.wanted(now, busy)
	if r != nil {
		r.sent = now
		r.known = m.epoch()
	}
	return r
}

// updatePhase changes the phase if necessary.
func (m *machine) updatePhase(now time.Duration, busy slots) {
	if m.phase == taking && m.draining && (now >= m.drainBy || m.valid && now >= m.until()) {
		m.phase = leaving
	}
	if m.phase == taking && m.table.table != nil && m.table.config != m.configDigest && m.hasOtherMembers() {
		m.err = fmt.Errorf("%w %q: the table has %q, but this member has %q: use another name, or stop the other members first", errConfig, m.Name, m.table.config, m.configDigest)
		m.phase = finished
	}
	if m.phase == stopping && busy.empty() {
		m.rejoin()
	}
	if m.phase == leaving && busy.empty() && (m.own.version == "" || m.valid && now >= m.until()) {
		m.phase = finished
	}
	if m.phase == joining && m.draining {
		m.phase = finished
	}
}

// hasOtherMembers reports whether a member of the table is alive.
func (m *machine) hasOtherMembers() bool {
	return slices.ContainsFunc(m.table.members, func(id string) bool {
		o := m.seen[id]
		return o != nil && o.renewed && !o.state.ended()
	})
}

// rejoin resets the member to join under another id.
func (m *machine) rejoin() {
	m.phase, m.id = joining, m.newID()
	m.own, m.sent, m.ownStale, m.reading, m.valid = lease{}, 0, false, false, false
	m.table, m.mine, m.stale, m.moving = stored{}, part{}, false, moving{}
	m.noTable, m.voluntary, m.relist = false, false, false
}

// abandon is called when the member was expelled, or its Leases are not the expected ones.
func (m *machine) abandon(why error) {
	m.lastErr = why
	switch m.phase {
	case taking:
		m.phase = stopping
	case leaving:
		m.own.version = "" // nothing to report
	default:
	}
}

func (m *machine) wanted(now time.Duration, busy slots) *request {
	switch {
	case m.phase == stopping || m.phase == finished || now < m.retryAt:
		return nil
	case m.ownStale:
		return &request{verb: readOwn, lease: lease{id: m.id}}
	case m.phase == joining:
		m.sent++
		return &request{verb: createOwn, lease: lease{id: m.id, renewals: m.sent, weight: m.Weight, config: m.configDigest}}
	case m.phase == leaving:
		if !busy.empty() {
			return nil
		}
		l := m.own
		l.state = left
		return m.renewal(l)
	case m.reading && now < m.cycleSent+m.RenewInterval || m.stale:
		return &request{verb: readTable}
	case m.draining && m.own.state == draining && !m.named():
		return &request{verb: deleteOwn, lease: m.own}
	}
	l := m.own
	if m.draining {
		l.state = draining
	}
	// Later, the table may have been deleted. Then, other members would interpret a report as one about moves
	// of the new table.
	if now < m.until() {
		l.loaded = m.loadedUpTo()
		if closed, unreported := m.closed(); unreported && closed.and(busy).empty() {
			l.released = m.closedUpTo
		}
	}
	if now >= m.renewAt || l != m.own {
		return m.renewal(l)
	}
	return m.coordinate(now)
}

func (m *machine) renewal(l lease) *request {
	m.sent++
	l.renewals = m.sent
	return &request{verb: renewOwn, lease: l}
}

// handle processes the response to a request of next.
func (m *machine) handle(now time.Duration, r *request, a response) {
	if a.outcome == failed {
		m.lastErr = a.err
		m.retryAt = now + m.RenewInterval/6
		if r.verb == writeTable {
			m.stale = true // the table may have been written
		}
		if r.verb == deleteOwn || r.verb == renewOwn && r.lease.state == left {
			m.phase = finished // others will detect it
		}
		return
	}
	m.retryAt = now
	switch r.verb {
	case createOwn, renewOwn, readOwn:
		m.handleOwn(now, r, a)
	case deleteOwn:
		m.phase = finished
	case readTable:
		m.handleTable(now, r, a)
	default:
		m.handleCoordination(now, r, a)
	}
}

var (
	errExpelled = errors.New("this member was expelled: joining again")
	errReplaced = errors.New("the Leases were replaced: joining again")
)

func (m *machine) handleOwn(now time.Duration, r *request, a response) {
	if m.phase == stopping || m.phase == finished {
		return
	}
	switch {
	case a.outcome == notFound:
		m.ownStale = false
		m.abandon(errReplaced)
	case a.outcome != done:
		m.ownStale = true
	case r.verb == readOwn:
		m.ownStale = false
		if a.lease.state == expelled {
			m.abandon(errExpelled)
			return
		}
		// If others wrote the Lease, only its version has changed.
		same := a.lease.renewals == m.own.renewals && a.lease.state == m.own.state && m.own.version != ""
		if !same && (a.lease.renewals <= m.own.renewals || a.lease.renewals > m.sent) {
			m.abandon(errReplaced)
			return
		}
		m.own, m.renewAt = a.lease, now
	default:
		m.own = a.lease
		m.cycleSent, m.reading = r.sent, true
		m.renewAt = r.sent + m.RenewInterval
		if r.lease.state == left {
			m.phase = finished
		}
	}
	if m.phase == joining && m.own.version != "" {
		m.phase = taking
	}
}

// handleTable processes a table that was read from the server, i.e. not from a watch.
func (m *machine) handleTable(now time.Duration, r *request, a response) {
	if m.phase != taking {
		return
	}
	m.stale = false
	read := a.table
	if a.outcome == notFound {
		read = stored{}
	}
	switch epoch := read.epochOrNone(); {
	case epoch < r.known, epoch > 0 && (m.deleted(read) || epoch == m.epoch() && !read.equal(m.table.table)):
		m.abandon(errReplaced)
		return
	case epoch == 0:
		if !m.noTable {
			m.noTable, m.noTableSince = true, now
		}
	case epoch >= m.epoch():
		m.adopt(now, read)
	}
	if m.reading {
		m.reading, m.valid, m.validFrom, m.lastErr = false, true, m.cycleSent, nil
	}
}

// deleted reports whether a table is in another Lease than the known one, so that their epochs cannot be compared.
func (m *machine) deleted(read stored) bool { return m.table.table != nil && m.table.uid != read.uid }

// observeTable is called with a table from a watch, which may be old, even older than a table that was deleted.
func (m *machine) observeTable(now time.Duration, t stored) {
	if m.phase == taking && t.epoch > m.epoch() && !m.deleted(t) {
		m.adopt(now, t)
	}
}

// drain makes the member transfer its slots to others and leave.
func (m *machine) drain(now time.Duration) {
	if !m.draining {
		m.draining, m.drainBy = true, now+max(m.LeaseDuration, m.LoadTimeout)+2*m.GracePeriod
	}
}

// nextWake returns the time of the next step if no event occurs.
func (m *machine) nextWake(now time.Duration, busy slots) time.Duration {
	times := append(m.thresholds(now), m.renewAt, m.retryAt, m.until())
	for slot := range m.open().all {
		times = append(times, m.leaveBy[slot])
	}
	if m.draining {
		times = append(times, m.drainBy)
	}
	for slot := range busy.all {
		times = append(times, m.stopAt[slot])
	}
	at := never
	for _, t := range times {
		if t > now {
			at = min(at, t)
		}
	}
	return at
}
