package ring

import "time"

// open returns the outgoing slots in which work continues.
func (m *machine) open() slots {
	closed, _ := m.closed()
	return m.mine.outgoing.minus(closed)
}

// closed returns the outgoing slots in which no work begins. unreported is set if the member's Lease does not yet
// report all of them as released.
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

// loadedUpTo returns the epoch up to which all incoming slots are loaded, or the epoch in the Lease if that reports
// all of them.
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

// follow sets the LoadTimeout of the slots that move away since a new table.
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
		m.dirty = true
	}
	m.table, m.noTable = t, false
}
