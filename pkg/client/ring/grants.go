package ring

import "time"

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
	if m.Isolation == Continue {
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

// nextWake returns the time of the next step if no event occurs.
func (m *machine) nextWake(now time.Duration, busy slots) time.Duration {
	at := never
	soonest := func(times ...time.Duration) {
		for _, t := range times {
			if t > now {
				at = min(at, t)
			}
		}
	}
	soonest(m.checkAt, m.renewAt, m.retryAt, m.until())
	for slot := range m.open().all {
		soonest(m.leaveBy[slot])
	}
	if m.draining {
		soonest(m.drainBy)
	}
	for slot := range busy.all {
		soonest(m.stopAt[slot])
	}
	return at
}
