package ring

import "time"

// grants are what a member may work on.
type grants struct {
	// owned are the slots in which work may begin, until then.
	owned slots
	until time.Duration
	// stop are the slots in which the contexts of work end.
	stop slots
}

// grants returns what may be worked on now, of which busy are worked on.
func (m *machine) grants(now time.Duration, busy slots) grants {
	g := grants{until: m.until()}
	if m.isolation == Continue {
		g.until = never
	}
	if m.phase == taking && m.valid {
		g.owned = m.mine.has.or(m.open())
	}
	for slot := range slotCount {
		if !busy.has(slot) || g.owned.has(slot) && now < g.until {
			continue
		}
		if m.phase != taking || now >= g.until || now >= m.stopAt[slot] {
			g.stop.add(slot)
		}
	}
	return g
}

// coming returns the slots that move to this member.
func (m *machine) coming() slots {
	if m.phase == taking {
		return m.mine.coming
	}
	return slots{}
}

// wake returns when to look again although nothing has happened.
func (m *machine) wake(now time.Duration, busy slots) time.Duration {
	at := never
	soonest := func(times ...time.Duration) {
		for _, t := range times {
			if t > now {
				at = min(at, t)
			}
		}
	}
	soonest(m.checkAt, m.renewAt, m.retryAt, m.until())
	open := m.open()
	for slot := range slotCount {
		if open.has(slot) {
			soonest(m.leaveBy[slot])
		}
	}
	if m.draining {
		soonest(m.drainBy)
	}
	if !busy.empty() {
		for slot := range slotCount {
			if busy.has(slot) {
				soonest(m.stopAt[slot])
			}
		}
	}
	return at
}
