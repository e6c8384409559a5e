package history

import (
	"fmt"
	"slices"
)

// place is an object at a resource version.
type place struct {
	key Key
	rv  uint64
}

func placeOf(e Event) place { return place{e.Object.Key, e.Object.State.RV} }

// checkSession checks a stream by itself, and against the truth.
func checkSession(s *Session, t *truth) []Violation {
	c := sessionCheck{session: s, truth: t}
	initial, rest, from, ok := split(s)
	c.unique()
	if s.Streaming {
		if !ok {
			return c.violations // cut off before the end of the initial events
		}
		c.initial(initial, from)
	}
	c.ordered(rest, from)
	c.bookmarkable(rest)
	c.complete(rest, from)
	return c.violations
}

// split returns the initial events, the others, the resource version where
// those start, and whether it is known.
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
	session    *Session
	truth      *truth
	violations []Violation
}

func (c *sessionCheck) report(p Property, format string, args ...any) {
	c.violations = append(c.violations, Violation{p, c.session.String(), fmt.Sprintf(format, args...)})
}

// unique holds property 2.
func (c *sessionCheck) unique() {
	seen := map[place]bool{}
	for _, e := range c.session.Events {
		if e.Type == Bookmark {
			continue
		}
		if seen[placeOf(e)] {
			c.report(Unique, "%s of %v at %d was sent twice", e.Type, e.Object.Key, e.Object.State.RV)
		}
		seen[placeOf(e)] = true
	}
}

// ordered holds property 1, and that nothing comes from before the start.
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

// bookmarkable holds property 5.
func (c *sessionCheck) bookmarkable(events []Event) {
	var promised uint64
	for _, e := range events {
		rv := e.Object.State.RV
		switch {
		case e.Type == Bookmark:
			promised = max(promised, rv)
		case rv <= promised:
			c.report(Bookmarkable, "%s of %v at %d followed a bookmark at %d", e.Type, e.Object.Key, rv, promised)
		}
	}
}

// initial holds that initial events, put together, are the state at their end.
func (c *sessionCheck) initial(events []Event, end uint64) {
	state := map[Key]State{}
	for _, e := range events {
		fold(state, e)
	}
	d, scope := c.session.Domain, c.session.Scope
	want := c.truth.at(d, scope, end)
	for k, s := range want {
		if got, ok := state[k]; (!ok && !c.truth.vanished[s.UID]) || (ok && got != s) {
			c.report(Reliable, "the initial events up to %d show %v as %+v, and it was %+v", end, k, got, s)
		}
	}
	for k, s := range state {
		if _, ok := want[k]; !ok {
			c.report(Reliable, "the initial events up to %d show %v as %+v, which was not there", end, k, s)
		}
	}
}

// complete holds properties 3, 4 and 6: the events are exactly those that the
// history of writes asks for.
func (c *sessionCheck) complete(events []Event, from uint64) {
	to := max(from, c.session.Through)
	got := map[place]Event{}
	var first uint64
	for _, e := range events {
		to = max(to, e.Object.State.RV)
		if e.Type == Bookmark {
			continue
		}
		if first == 0 {
			first = e.Object.State.RV
		}
		got[placeOf(e)] = e
	}
	d, scope := c.session.Domain, c.session.Scope
	for _, want := range c.truth.between(d, scope, from, to) {
		e, ok := got[placeOf(want)]
		delete(got, placeOf(want))
		switch {
		case !ok && c.session.Resumed && (first == 0 || want.Object.State.RV < first):
			c.report(Resumable, "resumed at %d, it lacks %s of %v at %d", from, want.Type, want.Object.Key, want.Object.State.RV)
		case !ok:
			c.report(Reliable, "from %d to %d it lacks %s of %v at %d", from, to, want.Type, want.Object.Key, want.Object.State.RV)
		case e.Type != want.Type:
			c.report(Transitions, "%v at %d is %s and must be %s", e.Object.Key, e.Object.State.RV, e.Type, want.Type)
		case !e.Object.State.sameContent(want.Object.State):
			c.report(Transitions, "%s of %v at %d carries %+v and must carry %+v", e.Type, e.Object.Key, e.Object.State.RV, e.Object.State, want.Object.State)
		}
	}
	for _, e := range got {
		if e.Object.State.RV <= from {
			continue // reported already
		}
		if e.Type == Deleted && c.truth.vanished[e.Object.State.UID] && !c.truth.known(d, e.Object.Key, e.Object.State.RV) {
			continue // the only one who saw it
		}
		c.report(Transitions, "%s of %v at %d is nothing that its selector asks for: %+v", e.Type, e.Object.Key, e.Object.State.RV, e.Object.State)
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

// checkDeletes holds property 3 for deletions, of which the answer does not tell
// the resource version: a stream from before a deletion to what was written
// after it was acknowledged must have seen it.
func checkDeletes(h *History, t *truth) []Violation {
	var violations []Violation
	for _, op := range h.Ops {
		if op.Kind != Delete || op.Outcome != OK || !t.vanished[op.Expected.UID] {
			continue
		}
		before, after := around(h, op)
		for _, s := range h.Sessions {
			_, rest, from, ok := split(s)
			if ok && after != 0 && !s.View && s.Domain == op.Domain && s.Scope.Selects(op.Key, op.Expected) && from <= before && reached(s, rest) >= after && !leaves(rest, op.Expected.UID, before) {
				violations = append(violations, Violation{Reliable, s.String(),
					fmt.Sprintf("from %d to %d it lacks the deletion of %v, which happened between %d and %d", from, reached(s, rest), op.Key, before, after)})
			}
		}
	}
	return violations
}

// leaves reports whether events after a version say that an object is gone. Of
// those of a stream with a selector that is all that is known: the object may
// have been changed.
func leaves(events []Event, uid string, after uint64) bool {
	return slices.ContainsFunc(events, func(e Event) bool {
		return e.Type == Deleted && e.Object.State.UID == uid && e.Object.State.RV > after
	})
}

// around returns the resource versions closest to a deletion that were certainly
// before and after it; 0 if there is none.
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

// reached returns up to where a session has seen everything.
func reached(s *Session, rest []Event) uint64 {
	to := s.Through
	for _, e := range rest {
		to = max(to, e.Object.State.RV)
	}
	return to
}
