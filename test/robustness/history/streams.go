package history

import "slices"

// objectVersion is an object at a resource version.
type objectVersion struct {
	key Key
	rv  uint64
}

func objectVersionOf(e Event) objectVersion { return objectVersion{e.Object.Key, e.Object.State.RV} }

// checkSession checks a stream by itself, and against the truth.
func checkSession(r *reporter, s *Session, t *truth) {
	c := sessionCheck{r, s, t}
	initial, rest, from, ok := split(s)
	c.unique()
	if s.Streaming {
		if !ok {
			return // cut off before the end of the initial events
		}
		c.initial(initial, from)
	}
	c.ordered(rest, from)
	c.bookmarkable(rest)
	c.complete(rest, from)
}

// split returns the initial events, the other events, and the resource version at which those start.
// ok is false if the stream was cut off within the initial events.
func split(s *Session) (initial, rest []Event, from uint64, ok bool) {
	if !s.Streaming {
		return nil, s.Events, s.From, true
	}
	for i, e := range s.Events {
		if e.InitialEnd {
			return s.Events[:i], s.Events[i+1:], e.Object.State.RV, true
		}
	}
	return s.Events, nil, 0, false
}

type sessionCheck struct {
	*reporter

	session *Session
	truth   *truth
}

func (c *sessionCheck) report(p Property, format string, args ...any) {
	c.reporter.report(p, c.session, format, args...)
}

// unique checks property 2.
func (c *sessionCheck) unique() {
	seen := map[objectVersion]bool{}
	for _, e := range c.session.Events {
		if e.Type == Bookmark {
			continue
		}
		if seen[objectVersionOf(e)] {
			c.report(Unique, "%s of %v at %d was sent twice", e.Type, e.Object.Key, e.Object.State.RV)
		}
		seen[objectVersionOf(e)] = true
	}
}

// ordered checks property 1, and that all events are later than the start.
func (c *sessionCheck) ordered(events []Event, from uint64) {
	var last uint64
	for _, e := range events {
		rv := e.Object.State.RV
		if rv < last {
			c.report(Ordered, "%s of %v at %d came after %d", e.Type, e.Object.Key, rv, last)
		}
		if e.Type != Bookmark && rv <= from {
			c.report(Resumable, "%s of %v at %d came in a stream from %d", e.Type, e.Object.Key, rv, from)
		}
		last = max(last, rv)
	}
}

// bookmarkable checks property 5.
func (c *sessionCheck) bookmarkable(events []Event) {
	var bookmark uint64
	for _, e := range events {
		rv := e.Object.State.RV
		switch {
		case e.Type == Bookmark:
			bookmark = max(bookmark, rv)
		case rv <= bookmark:
			c.report(Bookmarkable, "%s of %v at %d followed a bookmark at %d", e.Type, e.Object.Key, rv, bookmark)
		}
	}
}

// initial checks that the initial events add up to the state at their end.
func (c *sessionCheck) initial(events []Event, end uint64) {
	state := map[Key]State{}
	for _, e := range events {
		fold(state, e)
	}
	d, scope := c.session.Domain, c.session.Scope
	want := c.truth.at(d, scope, end)
	for k, s := range want {
		if got, ok := state[k]; (!ok && !c.truth.vanished[s.UID]) || (ok && got != s) {
			c.report(Reliable, "the initial events up to %d show %v as %+v, expected %+v", end, k, got, s)
		}
	}
	for k, s := range state {
		if _, ok := want[k]; !ok {
			c.report(Reliable, "the initial events up to %d show %v as %+v, which did not exist", end, k, s)
		}
	}
}

// complete checks properties 3, 4 and 6: the stream contains exactly the events that follow from
// the truth.
func (c *sessionCheck) complete(events []Event, from uint64) {
	to := max(from, c.session.Through)
	got := map[objectVersion]Event{}
	var first uint64
	for _, e := range events {
		to = max(to, e.Object.State.RV)
		if e.Type == Bookmark {
			continue
		}
		if first == 0 {
			first = e.Object.State.RV
		}
		got[objectVersionOf(e)] = e
	}
	d, scope := c.session.Domain, c.session.Scope
	for _, want := range c.truth.between(d, scope, from, to) {
		e, ok := got[objectVersionOf(want)]
		delete(got, objectVersionOf(want))
		switch {
		case !ok && c.session.Resumed && (first == 0 || want.Object.State.RV < first):
			c.report(Resumable, "resumed at %d, the stream lacks %s of %v at %d", from, want.Type, want.Object.Key, want.Object.State.RV)
		case !ok:
			c.report(Reliable, "from %d to %d the stream lacks %s of %v at %d", from, to, want.Type, want.Object.Key, want.Object.State.RV)
		case e.Type != want.Type:
			c.report(Transitions, "event of %v at %d is %s, expected %s", e.Object.Key, e.Object.State.RV, e.Type, want.Type)
		case !e.Object.State.sameContent(want.Object.State):
			c.report(Transitions, "%s of %v at %d contains %+v, expected %+v", e.Type, e.Object.Key, e.Object.State.RV, e.Object.State, want.Object.State)
		}
	}
	for _, e := range got {
		if e.Object.State.RV <= from {
			continue // reported already
		}
		if e.Type == Deleted && c.truth.vanished[e.Object.State.UID] && !c.truth.observed(d, e.Object.Key, e.Object.State.RV) {
			continue // only this session observed the deletion
		}
		c.report(Transitions, "unexpected %s of %v at %d: %+v", e.Type, e.Object.Key, e.Object.State.RV, e.Object.State)
	}
}

// fold applies an event to a state.
func fold(state map[Key]State, e Event) {
	switch e.Type {
	case Added, Modified:
		state[e.Object.Key] = e.Object.State
	case Deleted:
		delete(state, e.Object.Key)
	}
}

// checkDeletes checks property 3 for deletions. Their responses do not contain a resource version.
// A stream that begins before a deletion, and contains a write that began after its response, must
// contain the deletion.
func checkDeletes(r *reporter, h *History, t *truth) {
	for _, op := range h.Ops {
		if op.Kind != Delete || op.Outcome != OK || !t.vanished[op.Expected.UID] {
			continue
		}
		before, after := around(h, op)
		for _, s := range h.Sessions {
			_, rest, from, ok := split(s)
			if ok && after != 0 && !s.VirtualWorkspace && s.Domain == op.Domain && s.Scope.Selects(op.Key, op.Expected) &&
				from <= before && reached(s, rest) >= after && !deletes(rest, op.Expected.UID, before) {
				r.report(Reliable, s, "from %d to %d the stream lacks the deletion of %v, which happened between %d and %d",
					from, reached(s, rest), op.Key, before, after)
			}
		}
	}
}

// deletes reports whether events after a version remove an object. In a stream with a selector, the
// object may have been changed instead.
func deletes(events []Event, uid string, after uint64) bool {
	return slices.ContainsFunc(events, func(e Event) bool {
		return e.Type == Deleted && e.Object.State.UID == uid && e.Object.State.RV > after
	})
}

// around returns the closest resource versions that were certainly before and after a deletion, or
// 0.
func around(h *History, deletion *Op) (before, after uint64) {
	before = deletion.Expected.RV
	for _, op := range h.Ops {
		if op.Domain.Server != deletion.Domain.Server || op.Outcome != OK || (op.Kind != Create && op.Kind != Update) {
			continue
		}
		switch rv := op.Result.RV; {
		case op.End < deletion.Start:
			before = max(before, rv)
		case op.Start > deletion.End && (after == 0 || rv < after):
			after = rv
		}
	}
	return before, after
}

// reached returns the resource version up to which a session received all events.
func reached(s *Session, rest []Event) uint64 {
	to := s.Through
	for _, e := range rest {
		to = max(to, e.Object.State.RV)
	}
	return to
}
