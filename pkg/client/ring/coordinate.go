package ring

import (
	"time"
)

// saw tells of the Lease of a member as it was at some time.
func (m *machine) saw(now time.Duration, l lease) {
	o := m.seen[l.id]
	if o == nil {
		m.seen[l.id] = &observed{lease: l, since: now}
		m.dirty = true
		return
	}
	if o.version == l.version && o.uid == l.uid {
		return
	}
	m.dirty = m.dirty || o.state != l.state || o.released != l.released || o.loaded != l.loaded || o.weight != l.weight || m.quiet(now, o)
	o.lease, o.since, o.renewed = l, now, true
}

// sawDeletion tells that a member has no Lease any more.
func (m *machine) sawDeletion(id string) {
	delete(m.seen, id)
	m.dirty = true
}

// sawAll tells that all Leases that there were have been told of.
func (m *machine) sawAll() { m.synced, m.dirty = true, true }

// still reports whether a member was not heard of for so long that it may be expelled.
func (m *machine) still(now time.Duration, o *observed) bool { return now >= o.since+m.leaseDuration }

// quiet reports whether it was not heard of for so long that it has stopped working, as far as
// it was to be heard of at all.
func (m *machine) quiet(now time.Duration, o *observed) bool {
	return now >= o.since+m.renewDeadline
}

// lives reports whether a member can be the coordinator.
func (m *machine) lives(now time.Duration, id string) bool {
	if id == m.id {
		return true
	}
	o := m.seen[id]
	return o != nil && (o.state == active || o.state == draining) && !m.still(now, o)
}

func (m *machine) stateOf(id string) state {
	if id == m.id {
		return m.own.state
	}
	if o := m.seen[id]; o != nil {
		return o.state
	}
	return missing
}

// coordinates reports whether the member is the coordinator, as far as it can see: who wrote
// the last table, if that one lives and stays, or the first by id who does; if none stays, the
// first of those that live, and then the first of those that join. Should two believe it, the
// server takes the table of one of them.
func (m *machine) coordinates(now time.Duration) bool {
	if t := m.table.table; t != nil {
		if t.has(t.coordinator) && m.lives(now, t.coordinator) && m.stateOf(t.coordinator) == active {
			return t.coordinator == m.id
		}
		for _, leaving := range []bool{false, true} {
			for _, id := range t.members {
				if m.lives(now, id) && (leaving || m.stateOf(id) == active) {
					return id == m.id
				}
			}
		}
	}
	for id, o := range m.seen {
		if id < m.id && m.joins(now, o) {
			return false
		}
	}
	return true
}

// joins reports whether a member that no table names is to be one.
func (m *machine) joins(now time.Duration, o *observed) bool {
	return o.state == active && o.config == m.config && !m.quiet(now, o)
}

// coordinate returns what to ask the server for on behalf of all.
func (m *machine) coordinate(now time.Duration) *request {
	if m.phase != taking || !m.synced || now >= m.until() || !m.dirty && now < m.checkAt {
		return nil
	}
	m.dirty, m.checkAt = false, m.threshold(now)
	if m.relist {
		return &request{verb: listAll}
	}
	if !m.coordinates(now) {
		return nil
	}
	if m.table.table == nil {
		return m.firstTable(now)
	}
	for _, id := range m.table.members {
		if id == m.id {
			continue
		}
		o := m.seen[id]
		if o == nil {
			if r := m.replaceMissing(now, id); r != nil {
				return r
			}
			continue
		}
		delete(m.missingSince, id)
		if !o.state.ended() && m.still(now, o) {
			l := o.lease
			l.state = expelled
			return &request{verb: expel, lease: l}
		}
	}
	if next := m.planned(now); next != m.table.table {
		return &request{verb: writeTable, table: next, replaced: m.table}
	}
	return m.cleanUp(now)
}

// threshold returns when time alone changes what there is to do.
func (m *machine) threshold(now time.Duration) time.Duration {
	at := never
	soonest := func(t time.Duration) {
		if t > now {
			at = min(at, t)
		}
	}
	for _, o := range m.seen {
		if !o.state.ended() || m.still(now, o) {
			soonest(o.since + m.renewDeadline)
			soonest(o.since + m.leaseDuration)
		}
	}
	for _, since := range m.missingSince {
		soonest(since + m.renewDeadline)
	}
	if m.voluntary {
		soonest(m.voluntarySince + m.rebalanceDelay)
	}
	if m.noTable {
		soonest(m.noTableSince + m.leaseDuration)
	}
	return at
}

// firstTable makes the first table, after so long that nobody works by one that was there
// before: a ring that is new is not told from one whose Leases were deleted.
func (m *machine) firstTable(now time.Duration) *request {
	if !m.noTable || now < m.noTableSince+m.leaseDuration {
		return nil
	}
	next := plan(&table{config: m.config}, m.standings(now), m.maxRanges, true)
	next.coordinator = m.id
	return &request{verb: writeTable, table: next}
}

// replaceMissing puts a Lease in the place of one that was deleted. It will stand still, and
// the member is expelled in time, or finds it, and joins anew.
func (m *machine) replaceMissing(now time.Duration, id string) *request {
	since, known := m.missingSince[id]
	if !known {
		m.missingSince[id] = now
		m.checkAt = min(m.checkAt, now+m.renewDeadline)
		return nil
	}
	if now < since+m.renewDeadline {
		return nil
	}
	return &request{verb: replace, lease: lease{id: id, weight: 1, state: missing}}
}

// standings returns what is known of the members, and of those that join.
func (m *machine) standings(now time.Duration) map[string]*standing {
	all := map[string]*standing{m.id: {lease: m.own, joining: !m.named()}}
	if m.table.table != nil {
		for _, id := range m.table.members {
			if m.seen[id] == nil && id != m.id {
				all[id] = &standing{lease: lease{id: id, weight: 1, state: missing}, silent: true}
			}
		}
	}
	for id, o := range m.seen {
		named := m.table.table != nil && m.table.has(id)
		if id != m.id && (named || m.joins(now, o)) {
			all[id] = &standing{lease: o.lease, joining: !named, silent: m.quiet(now, o)}
		}
	}
	return all
}

// planned returns the table that is to follow: what has to change at once, and what can wait
// when it has waited.
func (m *machine) planned(now time.Duration) *table {
	all := m.standings(now)
	current := m.table.table
	if current.config != m.config {
		// Nobody lives that has agreed to the other one.
		changed := *current
		changed.config = m.config
		current = &changed
	}
	whole := true
	for _, s := range all {
		whole = whole && s.state != missing
	}
	next := plan(current, all, m.maxRanges, false)
	if whole {
		next = m.withVoluntary(now, current, next, plan(current, all, m.maxRanges, true))
	}
	if next == current {
		return m.table.table
	}
	next.coordinator = m.id
	return next
}

// withVoluntary returns the table with what could wait, if it has waited, and the one without
// otherwise.
func (m *machine) withVoluntary(now time.Duration, current, due, all *table) *table {
	if all == current || due != current && all.equal(due) {
		m.voluntary = false
		return due
	}
	if !m.voluntary {
		m.voluntary, m.voluntarySince = true, now
	}
	if now < m.voluntarySince+m.rebalanceDelay {
		m.checkAt = min(m.checkAt, m.voluntarySince+m.rebalanceDelay)
		return due
	}
	return all
}

// cleanUp deletes the Leases of those that are members no more, or never became one.
func (m *machine) cleanUp(now time.Duration) *request {
	for id, o := range m.seen {
		if id != m.id && !m.table.has(id) && (o.state.ended() || m.still(now, o)) {
			return &request{verb: deleteOther, lease: o.lease}
		}
	}
	return nil
}

// answeredCoordination tells what became of a request of the coordinator.
func (m *machine) answeredCoordination(now time.Duration, r *request, a answer) {
	m.dirty = true
	switch r.verb {
	case writeTable:
		if a.outcome == done {
			if m.phase == taking && a.table.epoch > m.epoch() {
				m.voluntary = m.voluntary && now < m.voluntarySince+m.rebalanceDelay
				m.adopt(now, a.table)
			}
			return
		}
		m.stale = true
	case listAll:
		m.relist = false
		there := map[string]bool{}
		for _, l := range a.leases {
			there[l.id] = true
			m.saw(now, l)
		}
		for id := range m.seen {
			if !there[id] {
				delete(m.seen, id)
			}
		}
	case expel, replace:
		if a.outcome == done {
			m.saw(now, a.lease)
			return
		}
		m.relist = true // it lives, or is not what it was
		delete(m.missingSince, r.lease.id)
	case deleteOther:
		if a.outcome == done || a.outcome == notFound {
			delete(m.seen, r.lease.id)
			return
		}
		m.relist = true
	default:
	}
}
