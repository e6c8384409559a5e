package mutants

const (
	ringPackage = "./pkg/client/ring"
	ringModel   = "TestModel"
	ringStep    = "pkg/client/ring/step.go"
	ringCoord   = "pkg/client/ring/coordinate.go"
	ringMoves   = "pkg/client/ring/machine.go"
)

// ring are mutants of the division of work between replicas of a controller.
var ring = []Mutant{
	{
		Name: "timeless-member", Rule: "a member must stop RenewDeadline after a renewal",
		Edits: []Edit{{
			File:   "pkg/client/ring/machine.go",
			Before: `	g := grants{until: m.until()}`,
			After:  `	g := grants{until: m.until() + m.RenewDeadline}`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "late-clock", Rule: "a renewal counts from the time of the request, not of the response",
		Edits: []Edit{{
			File:   ringStep,
			Before: `m.reading, m.valid, m.validFrom, m.lastErr = false, true, m.cycleSent, nil`,
			After:  `m.reading, m.valid, m.validFrom, m.lastErr = false, true, now, nil`,
		}},
		CaughtBy: ringPackage, Test: "TestRenewalCountsFromWhenItWasSent",
	},
	{
		Name: "early-release", Rule: "a member releases a range only if its work there has ended",
		Edits: []Edit{{
			File:   ringStep,
			Before: `unreported && closed.and(busy).empty()`,
			After:  `unreported && !closed.empty()`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "revived-move", Rule: "a revoked move must not be continued by releases for it",
		Edits: []Edit{{
			File:   "pkg/client/ring/plan.go",
			Before: `a.moving() && owner.released >= a.since`,
			After:  `a.moving() && owner.released > 0`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "early-expulsion", Rule: "a member is expelled after LeaseDuration of the coordinator's clock",
		Edits: []Edit{{
			File:   ringCoord,
			Before: `return now >= o.since+m.LeaseDuration }`,
			After:  `return now >= o.since+m.RenewDeadline }`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "blind-expulsion", Rule: "if the expulsion of a member conflicts, it is still a member",
		Edits: []Edit{{
			File: ringCoord,
			Before: `		m.relist = true // it is alive, or has changed
`,
			After: `		m.saw(now, r.lease)
		m.relist = r.verb == replace
		if o := m.seen[r.lease.id]; o != nil {
			o.state = expelled
		}
`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "refused-table", Rule: "of two successors of a table, the one on the server counts",
		Edits: []Edit{{
			File: ringCoord,
			Before: `		m.stale = true
	case listAll:`,
			After: `		m.adopt(now, stored{r.table, r.replaced.uid, r.replaced.version})
	case listAll:`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "restless-ring", Rule: "members keep their ranges",
		Edits: []Edit{{
			File:   "pkg/client/ring/plan.go",
			Before: `		s.target = min(max(s.count, s.floor), s.ceiling)`,
			After:  `		s.target = s.floor`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "forgotten-table", Rule: "if the Leases of a ring were deleted, it waits until no member uses the former table",
		Edits: []Edit{{
			File:   ringCoord,
			Before: `if !m.noTable || now < m.noTableSince+m.LeaseDuration {`,
			After:  `if !m.noTable {`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "reports-of-deleted-table", Rule: "reports about moves of a deleted table do not count for a new one",
		Edits: []Edit{{
			File:   ringCoord,
			Before: ` && o.released == 0 && o.loaded == 0`,
			After:  ``,
		}},
		CaughtBy: ringPackage, Test: "TestFailedSchedules",
	},
	{
		Name: "late-report", Rule: "a member that has not read the table in time reports no moves of it",
		Edits: []Edit{{
			File: ringStep,
			Before: `	if now < m.until() {
		l.loaded`,
			After: `	if m.valid {
		l.loaded`,
		}},
		CaughtBy: ringPackage, Test: "TestReportsOfADeletedTable",
	},
	{
		Name: "early-range-move", Rule: "a range is only moved if the new owner has loaded it",
		Edits: []Edit{{
			File:   ringMoves,
			Before: `	return o != nil && o.loaded >= a.since`,
			After:  `	return o != nil`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
	{
		Name: "redirected-move", Rule: "a move to another member is a different move, for which the member must load the range",
		Edits: []Edit{{
			File: "pkg/client/ring/plan.go",
			Before: `		a.to, a.since = to, b.next.epoch
`,
			After: `		if a.to = to; !a.moving() {
			a.since = b.next.epoch
		}
`,
		}},
		CaughtBy: ringPackage, Test: ringModel,
	},
}
