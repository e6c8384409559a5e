package ring

import "time"

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
