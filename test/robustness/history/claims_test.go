package history

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// minutes are longer than all tolerances.
func minutes(n int64) int64 { return n * int64(time.Minute) }

func received(e Event, at int64) Event {
	e.Time = minutes(at)
	return e
}

// validClaims is a history with the objects of validHistory. The claims on aa allow all objects,
// then red ones, then none, then all again:
//
//	10 a red · 11 b blue · 12 (bb) · red · 13 a blue · 14 b deleted · none · 15 a red · all
func validClaims() *History {
	h := validHistory()
	for _, op := range h.Ops { // 12 is current when red objects are claimed, and 14 when none are
		op.Start, op.End = minutes(op.Start)/4, minutes(op.End)/4
	}
	for _, l := range h.Lists {
		l.Start, l.End = minutes(l.Start)/4, minutes(l.End)/4
	}
	claim := func(cluster string, after uint64, at int64, effective bool, labels ...string) *Claim {
		return &Claim{Domain: configMaps, Cluster: cluster, Effective: effective, Labels: labels, After: after, Start: minutes(at), End: minutes(at)}
	}
	h.Claims = []*Claim{
		claim("aa", 0, 0, true), claim("bb", 0, 0, true),
		claim("aa", 11, 10, true, "red"), claim("aa", 14, 20, false), claim("aa", 15, 30, true),
	}
	h.Lists = append(h.Lists, &List{ID: 10, Name: "client", Client: "client", VirtualWorkspace: true, Domain: configMaps, Start: minutes(5), End: minutes(5), Match: Any, Pages: []Page{{RV: 12}}, Items: []Object{{a, a1}, {b, b1}, {otherCluster, e1}}})
	h.Sessions = append(h.Sessions,
		&Session{ID: 11, Name: "client", VirtualWorkspace: true, Domain: configMaps, From: 12, Start: minutes(9), Events: []Event{
			received(event(Deleted, b, at(b1, 12)), 10), received(bookmark(12), 10),
			received(event(Deleted, a, at(a1, 13)), 11), received(bookmark(14), 11),
		}},
		&Session{ID: 12, Name: "client", VirtualWorkspace: true, Resumed: true, Domain: configMaps, From: 14, Start: minutes(30), Through: 16, Events: []Event{
			received(event(Added, a, a3), 30), received(bookmark(16), 30), received(bookmark(17), 31),
		}},
	)
	return h
}

func TestValidClaims(t *testing.T) { require.Empty(t, Check(validClaims())) }

func TestInvalidClaims(t *testing.T) {
	list := func(h *History) *List { return h.Lists[len(h.Lists)-1] }
	events := func(n int, change func(all []Event) []Event) func(*History) {
		return func(h *History) {
			s := h.Sessions[len(h.Sessions)-2+n]
			s.Events = change(slices.Clone(s.Events))
		}
	}
	drop := func(n, i int) func(*History) {
		return events(n, func(all []Event) []Event { return slices.Delete(all, i, i+1) })
	}
	put := func(n, i int, e Event) func(*History) {
		return events(n, func(all []Event) []Event { return slices.Insert(all, i, e) })
	}
	testCorruptions(t, validClaims, []corruption{
		{name: "list lacks an object", want: Claimed, message: "match no possible claim", apply: func(h *History) {
			list(h).Items = list(h).Items[1:]
		}},
		{name: "list lacks a consumer", want: Claimed, message: "match no possible claim", apply: func(h *History) {
			list(h).Items = list(h).Items[:2]
		}},
		{name: "list with an object that is not selected", want: Claimed, message: "which no possible claim allows", apply: func(h *History) {
			list(h).Start = minutes(15)
		}},
		{name: "list of a later claim", want: Claimed, message: "match no possible claim", apply: func(h *History) {
			list(h).Items = []Object{{a, a1}, {otherCluster, e1}}
		}},
		{name: "lost change of a claim", want: Claimed, message: "match no possible claim", apply: drop(0, 0)},
		{name: "lost last change of a claim", want: Claimed, message: "after the last change", apply: events(1, func([]Event) []Event { return []Event{received(bookmark(16), 31)} })},
		{name: "lost removal between watches", want: Claimed, message: "match no possible claim", apply: func(h *History) {
			h.Sessions = h.Sessions[:len(h.Sessions)-1]
			put(1, 4, received(bookmark(15), 40))(h)
		}},
		{name: "lost event", want: Claimed, message: "match no possible claim", apply: drop(0, 2)},
		{name: "event that no claim allows", want: Claimed, message: "MODIFIED contains", apply: put(0, 2, received(event(Modified, a, a2), 11))},
		{name: "repeated event", want: Claimed, message: "is unexpected", apply: put(0, 2, received(event(Modified, a, a1), 11))},
		{name: "object removed with another state", want: Claimed, message: "expected {", apply: events(0, func(all []Event) []Event {
			all[2].Object.State.Label = "blue"
			return all
		})},
	})
}

// TestRepeatedEvents checks that a stream which resumes after a claim has changed, however long
// ago, may repeat events in any order until the next bookmark. They must add up to the current
// state.
func TestRepeatedEvents(t *testing.T) {
	resumed := func(events ...Event) *History {
		h := validClaims()
		events = append(events, received(bookmark(16), 90))
		h.Sessions[len(h.Sessions)-1].Events = events
		return h
	}
	require.Empty(t, Check(resumed(received(event(Deleted, b, at(b1, 14)), 90), received(event(Modified, a, a3), 90), received(event(Added, a, a3), 90))))
	require.NotEmpty(t, Check(resumed(received(event(Deleted, b, at(b1, 14)), 90))), "lacks an existing object")
	require.NotEmpty(t, Check(resumed(received(event(Added, a, a3), 90), received(event(Added, b, b1), 90))), "contains a removed object")
	h := resumed(received(event(Added, a, a3), 90))
	s := h.Sessions[len(h.Sessions)-1]
	s.Events = append(s.Events, received(event(Added, a, a3), 91), received(bookmark(17), 91))
	require.NotEmpty(t, Check(h), "repeated after the bookmark")
}

// TestDelayedDelivery checks that events may be received long after they were sent, but must have
// been sent when their claim was effective.
func TestDelayedDelivery(t *testing.T) {
	late := func(change func(red *Claim, s *Session)) []Violation {
		h := validClaims()
		l, s, red := h.Lists[len(h.Lists)-1], h.Sessions[len(h.Sessions)-2], h.Claims[2]
		l.Pages, l.Items = []Page{{RV: 10}}, []Object{{a, a1}}
		red.Version = 13
		s.From, s.Events = 10, []Event{
			received(event(Added, b, b1), 14), received(event(Added, otherCluster, e1), 14), received(bookmark(12), 14),
			received(event(Deleted, b, at(b1, 12)), 14), received(bookmark(12), 14), received(event(Deleted, a, at(a1, 13)), 14), received(bookmark(14), 14),
		}
		change(red, s)
		return Check(h)
	}
	require.Empty(t, late(func(*Claim, *Session) {}))
	require.NotEmpty(t, late(func(_ *Claim, s *Session) { s.Start = minutes(11) }), "requested after the claim was effective")
	require.NotEmpty(t, late(func(red *Claim, _ *Session) { red.Version = 12 }), "bookmark sent after the claim was effective")
	require.NotEmpty(t, late(func(_ *Claim, s *Session) {
		s.Events = append(s.Events[:3], received(event(Modified, a, a2), 14))
	}), "event sent after the claim was effective")
}

// TestPagesOfTwoClaims checks that a claim may change between the pages of a list.
func TestPagesOfTwoClaims(t *testing.T) {
	h := validClaims()
	h.Sessions = h.Sessions[:len(h.Sessions)-2]
	h.Claims = h.Claims[:3]
	h.Claims[2].Effective = false
	l := h.Lists[len(h.Lists)-1]
	l.Client = ""
	l.Start, l.End, l.Items = minutes(9), minutes(11), []Object{{a, a1}, {otherCluster, e1}}
	require.NotEmpty(t, Check(h))
	l.Pages = []Page{{RV: 12, More: true, Items: 1}, {RV: 12, Items: 1}}
	require.Empty(t, Check(h))
	l.End = minutes(9)
	require.NotEmpty(t, Check(h), "the claim had not changed yet")
}

// TestClaimsOfReplicas checks that another replica may apply a claim later, but only for a limited
// time.
func TestClaimsOfReplicas(t *testing.T) {
	h := validClaims()
	h.Replicas = true
	late := func(at int64) {
		h.Sessions[len(h.Sessions)-1].Events = []Event{
			{Type: Bookmark, Object: Object{State: State{RV: 15}}, Time: at}, received(event(Added, a, a3), 40), received(bookmark(16), 40),
		}
	}
	late(minutes(30) + lag)
	require.Empty(t, Check(h))
	late(minutes(30) + 2*lag)
	require.NotEmpty(t, Check(h))
}
