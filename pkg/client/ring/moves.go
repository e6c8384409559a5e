package ring

import "time"

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

// open returns the slots that move away and that are still worked on.
func (m *machine) open() slots {
	closed, _ := m.closed()
	return m.mine.leaving.minus(closed)
}

// closed returns the slots that move away and in which nothing begins any more. unsaid reports
// whether the member's Lease does not say yet of all that they are released.
func (m *machine) closed() (closed slots, unsaid bool) {
	for slot := range slotCount {
		if !m.mine.leaving.has(slot) {
			continue
		}
		if since := m.table.slots[slot].since; since <= m.closedUpTo {
			closed.add(slot)
			unsaid = unsaid || since > m.own.released
		}
	}
	return closed, unsaid
}

// close has nothing begin any more in slots that move away, as soon as the members that they
// move to have loaded all that moves since the same table or before, or are not waited for any
// longer. What is not taken by anybody is not waited for.
func (m *machine) close(now time.Duration) {
	if m.phase != taking || m.table.table == nil || m.mine.leaving.empty() {
		return
	}
	upTo := m.epoch()
	for slot := range slotCount {
		if a := m.table.slots[slot]; m.mine.leaving.has(slot) && a.since > m.closedUpTo && !m.loadedBy(a) && now < m.leaveBy[slot] {
			upTo = min(upTo, a.since-1)
		}
	}
	for slot := range slotCount {
		if since := m.table.slots[slot].since; m.mine.leaving.has(slot) && since > m.closedUpTo && since <= upTo {
			m.stopAt[slot] = now + m.gracePeriod
		}
	}
	m.closedUpTo = max(m.closedUpTo, upTo)
}

// loadedBy reports whether the member that a slot moves to says that it has loaded it.
func (m *machine) loadedBy(a assignment) bool {
	if a.to == "" {
		return true
	}
	o := m.seen[a.to]
	return o != nil && o.loaded >= a.since
}

// loadedUpTo returns the epoch of a table, such that all is loaded that comes by moves which
// began up to then. It is what the Lease says, if there is nothing to add.
func (m *machine) loadedUpTo() int64 {
	upTo := m.epoch()
	for slot := range slotCount {
		if m.mine.coming.has(slot) && !m.ready.has(slot) {
			upTo = min(upTo, m.table.slots[slot].since-1)
		}
	}
	for slot := range slotCount {
		if !m.mine.coming.has(slot) {
			continue
		}
		if since := m.table.slots[slot].since; since > m.own.loaded && since <= upTo {
			return upTo
		}
	}
	return m.own.loaded
}

// follow notes until when work goes on in the slots that move away since another table.
func (m *machine) follow(now time.Duration, before, after stored) {
	for slot := range slotCount {
		var was assignment
		if before.table != nil {
			was = before.slots[slot]
		}
		if m.mine.leaving.has(slot) && (was.owner != m.id || was.since != after.slots[slot].since) {
			m.leaveBy[slot] = now + m.loadTimeout
		}
	}
}
