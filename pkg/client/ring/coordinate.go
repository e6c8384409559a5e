package ring

import (
	"maps"
	"slices"
	"time"
)

// saw is called with an observed Lease of a member.
func (m *machine) saw(now time.Duration, l lease) {
	o := m.seen[l.id]
	if o == nil {
		m.seen[l.id] = &observed{lease: l, since: now}
	} else if o.version != l.version || o.uid != l.uid {
		o.lease, o.since, o.renewed = l, now, true
	}
}

// expired reports whether a member may be expelled.
func (m *machine) expired(now time.Duration, o *observed) bool { return now >= o.since+m.LeaseDuration }

// isExpired reports whether a member has not renewed for so long that it must have stopped working.
func (m *machine) isExpired(now time.Duration, o *observed) bool {
	return now >= o.since+m.RenewDeadline
}

// isAlive reports whether a member can be the coordinator.
func (m *machine) isAlive(now time.Duration, id string) bool {
	if id == m.id {
		return true
	}
	o := m.seen[id]
	return o != nil && (o.state == active || o.state == draining) && !m.expired(now, o)
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

// coordinates reports whether this member considers itself the coordinator. This is the writer of the last table if
// it is alive and active, otherwise the first active member that is alive, otherwise the first member that is alive.
// Without a table, or if none of its members is alive, it is the first joining member. Members are ordered by id.
func (m *machine) coordinates(now time.Duration) bool {
	if t := m.table.table; t != nil {
		if t.has(t.coordinator) && m.isAlive(now, t.coordinator) && m.stateOf(t.coordinator) == active {
			return t.coordinator == m.id
		}
		for _, leaving := range []bool{false, true} {
			for _, id := range t.members {
				if m.isAlive(now, id) && (leaving || m.stateOf(id) == active) {
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

// joins reports whether a member that is not in the table should be added. If its Lease reports moves, these are
// moves of a deleted table. They must not count for this table, which may have the same epochs. Such a member joins
// under a new id when it detects the new table.
func (m *machine) joins(now time.Duration, o *observed) bool {
	return o.state == active && o.config == m.configDigest && !m.isExpired(now, o) && o.released == 0 && o.loaded == 0
}

// coordinate returns the next request of the coordinator, or nil.
func (m *machine) coordinate(now time.Duration) *request {
	switch {
	case m.phase != taking || !m.synced || now >= m.until():
		return nil
	case m.relist:
		return &request{verb: listAll}
	case !m.coordinates(now):
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
			// Its Lease was deleted, or not observed yet. The new Lease is not renewed. Therefore, the member is
			// expelled later.
			return &request{verb: replace, lease: lease{id: id, weight: 1, state: missing}}
		}
		if !o.state.ended() && m.expired(now, o) {
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

// thresholds returns the times at which the result of coordinate changes.
func (m *machine) thresholds(now time.Duration) (times []time.Duration) {
	for _, o := range m.seen {
		if !o.state.ended() || m.expired(now, o) {
			times = append(times, o.since+m.RenewDeadline, o.since+m.LeaseDuration)
		}
	}
	if m.voluntary {
		times = append(times, m.voluntarySince+m.RebalanceDelay)
	}
	if m.noTable {
		times = append(times, m.noTableSince+m.LeaseDuration)
	}
	return times
}

// firstTable creates the first table after LeaseDuration, because a new ring cannot be distinguished from one whose
// Leases were deleted. By then, no member works by a deleted table.
func (m *machine) firstTable(now time.Duration) *request {
	if !m.noTable || now < m.noTableSince+m.LeaseDuration {
		return nil
	}
	next := plan(&table{config: m.configDigest}, m.memberStatuses(now), true)
	next.coordinator = m.id
	return &request{verb: writeTable, table: next}
}

func (m *machine) memberStatuses(now time.Duration) map[string]*memberStatus {
	all := map[string]*memberStatus{m.id: {lease: m.own, joining: !m.named()}}
	for id, o := range m.seen {
		named := m.table.table != nil && m.table.has(id)
		if id != m.id && (named || m.joins(now, o)) {
			all[id] = &memberStatus{lease: o.lease, joining: !named, silent: m.isExpired(now, o)}
		}
	}
	return all
}

func (m *machine) planned(now time.Duration) *table {
	all := m.memberStatuses(now)
	current := m.table.table
	if current.config != m.configDigest {
		// No member with the other configuration is alive.
		changed := *current
		changed.config = m.configDigest
		current = &changed
	}
	whole := true
	for _, s := range all {
		whole = whole && s.state != missing
	}
	next := plan(current, all, false)
	if whole {
		next = m.withVoluntary(now, current, next, plan(current, all, true))
	}
	if next == current {
		return m.table.table
	}
	next.coordinator = m.id
	return next
}

// withVoluntary returns the table with voluntary changes if RebalanceDelay has passed, or else the one without.
func (m *machine) withVoluntary(now time.Duration, current, due, all *table) *table {
	if all == current || due != current && all.equal(due) {
		m.voluntary = false
		return due
	}
	if !m.voluntary {
		m.voluntary, m.voluntarySince = true, now
	}
	if now < m.voluntarySince+m.RebalanceDelay {
		return due
	}
	return all
}

// cleanUp deletes Leases of former members, and of members that never joined; in order, so that TestModel can repeat
// a schedule.
func (m *machine) cleanUp(now time.Duration) *request {
	for _, id := range slices.Sorted(maps.Keys(m.seen)) {
		if o := m.seen[id]; id != m.id && !m.table.has(id) && (o.state.ended() || m.expired(now, o)) {
			return &request{verb: deleteOther, lease: o.lease}
		}
	}
	return nil
}

func (m *machine) handleCoordination(now time.Duration, r *request, a response) {
	switch r.verb {
	case writeTable:
		if a.outcome == done {
			if m.phase == taking && a.table.epoch > m.epoch() {
				m.voluntary = m.voluntary && now < m.voluntarySince+m.RebalanceDelay
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
		maps.DeleteFunc(m.seen, func(id string, _ *observed) bool { return !there[id] })
	case expel, replace:
		if a.outcome == done {
			m.saw(now, a.lease)
			return
		}
		// Lists do not contain it if others have changed its labels.
		m.retryAt = now + m.RenewInterval/6
		m.relist = true // it is alive, or has changed
	case deleteOther:
		if a.outcome == done || a.outcome == notFound {
			delete(m.seen, r.lease.id)
			return
		}
		m.relist = true
	default:
	}
}
