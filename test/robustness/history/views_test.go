package history

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seconds are far enough from each other that no slack matters.
func seconds(n int64) int64 { return n * int64(time.Minute) }

func came(e Event, at int64) Event {
	e.Time = seconds(at)
	return e
}

// viewed is a history of the objects of good, of which claims on aa show all, then red ones,
// then none, then all again:
//
//	10 a red · 11 b blue · 12 (bb) · red · 13 a blue · 14 b deleted · none · 15 a red · all
func viewed() *History {
	h := good()
	for _, op := range h.Ops { // 12 is reached when red ones are claimed, and 14 when none are
		op.Start, op.End = seconds(op.Start)/4, seconds(op.End)/4
	}
	for _, l := range h.Lists {
		l.Start, l.End = seconds(l.Start)/4, seconds(l.End)/4
	}
	claim := func(cluster string, after uint64, at int64, held bool, labels ...string) *Claim {
		return &Claim{Domain: configMaps, Cluster: cluster, Held: held, Labels: labels, After: after, Start: seconds(at), End: seconds(at)}
	}
	h.Claims = []*Claim{
		claim("aa", 0, 0, true), claim("bb", 0, 0, true),
		claim("aa", 11, 10, true, "red"), claim("aa", 14, 20, false), claim("aa", 15, 30, true),
	}
	h.Lists = append(h.Lists, &List{ID: 10, Name: "view", Client: "view", View: true, Domain: configMaps, Start: seconds(5), End: seconds(5), Match: Any, Pages: []Page{{RV: 12}}, Items: []Object{{a, a1}, {b, b1}, {elsewhere, e1}}})
	h.Sessions = append(h.Sessions,
		&Session{ID: 11, Name: "view", View: true, Domain: configMaps, From: 12, Start: seconds(9), Events: []Event{
			came(event(Deleted, b, at(b1, 12)), 10), came(bookmark(12), 10),
			came(event(Deleted, a, at(a1, 13)), 11), came(bookmark(14), 11),
		}},
		&Session{ID: 12, Name: "view", View: true, Resumed: true, Domain: configMaps, From: 14, Start: seconds(30), Through: 16, Events: []Event{
			came(event(Added, a, a3), 30), came(bookmark(16), 30), came(bookmark(17), 31),
		}},
	)
	return h
}

func TestGoodView(t *testing.T) { require.Empty(t, Check(viewed())) }

// TestBadViews spoils what a view showed in one place at a time.
func TestBadViews(t *testing.T) {
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
	for _, c := range []struct {
		name, says string
		spoil      func(*History)
	}{
		{"a list lacks an object", "is by no claim of the time", func(h *History) { list(h).Items = list(h).Items[1:] }},
		{"a list lacks a consumer", "is by no claim of the time", func(h *History) { list(h).Items = list(h).Items[:2] }},
		{"a list shows what is not selected", "which no claim of the time lets it see", func(h *History) { list(h).Start = seconds(15) }},
		{"a list is by a claim that comes later", "is by no claim of the time", func(h *History) { list(h).Items = []Object{{a, a1}, {elsewhere, e1}} }},
		{"a change of a claim is not told", "is by no claim of the time", drop(0, 0)},
		{"one that comes is not told", "when all is quiet", events(1, func([]Event) []Event { return []Event{came(bookmark(16), 31)} })},
		{"one that goes while nobody watches is not told", "is by no claim of the time", func(h *History) {
			h.Sessions = h.Sessions[:len(h.Sessions)-1]
			put(1, 4, came(bookmark(15), 40))(h)
		}},
		{"an event under a claim is lost", "is by no claim of the time", drop(0, 2)},
		{"an event that no claim lets be seen", "MODIFIED shows", put(0, 2, came(event(Modified, a, a2), 11))},
		{"an event comes twice", "is not asked for", put(0, 2, came(event(Modified, a, a1), 11))},
		{"an object leaves with another state", "must be", events(0, func(all []Event) []Event {
			all[2].Object.State.Label = "blue"
			return all
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := viewed()
			c.spoil(h)
			violations := Check(h)
			require.True(t, slices.ContainsFunc(violations, func(v Violation) bool {
				return v.Property == Claimed && (strings.Contains(v.What, c.says))
			}), "want %q, got %v", c.says, violations)
		})
	}
}

// TestToldAgain: who resumes after a claim has changed, however long ago, may be told again
// what it has seen, in any order until the next bookmark, and comes to the same.
func TestToldAgain(t *testing.T) {
	resumed := func(events ...Event) *History {
		h := viewed()
		events = append(events, came(bookmark(16), 90))
		h.Sessions[len(h.Sessions)-1].Events = events
		return h
	}
	require.Empty(t, Check(resumed(came(event(Deleted, b, at(b1, 14)), 90), came(event(Modified, a, a3), 90), came(event(Added, a, a3), 90))))
	require.NotEmpty(t, Check(resumed(came(event(Deleted, b, at(b1, 14)), 90))), "it does not come to what is there")
	require.NotEmpty(t, Check(resumed(came(event(Added, a, a3), 90), came(event(Added, b, b1), 90))), "nor to what is not")
	h := resumed(came(event(Added, a, a3), 90))
	s := h.Sessions[len(h.Sessions)-1]
	s.Events = append(s.Events, came(event(Added, a, a3), 91), came(bookmark(17), 91))
	require.NotEmpty(t, Check(h), "after the bookmark")
}

// TestLateViews: what a stream shows may come long after it was made, but only what was made
// when its claim counted.
func TestLateViews(t *testing.T) {
	late := func(change func(red *Claim, s *Session)) []Violation {
		h := viewed()
		l, s, red := h.Lists[len(h.Lists)-1], h.Sessions[len(h.Sessions)-2], h.Claims[2]
		l.Pages, l.Items = []Page{{RV: 10}}, []Object{{a, a1}}
		red.Version = 13
		s.From, s.Events = 10, []Event{
			came(event(Added, b, b1), 14), came(event(Added, elsewhere, e1), 14), came(bookmark(12), 14),
			came(event(Deleted, b, at(b1, 12)), 14), came(bookmark(12), 14), came(event(Deleted, a, at(a1, 13)), 14), came(bookmark(14), 14),
		}
		change(red, s)
		return Check(h)
	}
	require.Empty(t, late(func(*Claim, *Session) {}))
	require.NotEmpty(t, late(func(_ *Claim, s *Session) { s.Start = seconds(11) }), "it was asked for when the claim had long had effect")
	require.NotEmpty(t, late(func(red *Claim, _ *Session) { red.Version = 12 }), "the bookmark was made when the claim had long had effect")
	require.NotEmpty(t, late(func(_ *Claim, s *Session) {
		s.Events = append(s.Events[:3], came(event(Modified, a, a2), 14))
	}), "so was the event")
}

// TestPagesOfTwoClaims: a claim may change between the pages of a list.
func TestPagesOfTwoClaims(t *testing.T) {
	h := viewed()
	h.Sessions = h.Sessions[:len(h.Sessions)-2]
	h.Claims = h.Claims[:3]
	h.Claims[2].Held = false
	l := h.Lists[len(h.Lists)-1]
	l.Client = ""
	l.Start, l.End, l.Items = seconds(9), seconds(11), []Object{{a, a1}, {elsewhere, e1}}
	require.NotEmpty(t, Check(h))
	l.Pages = []Page{{RV: 12, More: true, Items: 1}, {RV: 12, Items: 1}}
	require.Empty(t, Check(h))
	l.End = seconds(9)
	require.NotEmpty(t, Check(h), "it had not changed yet")
}

// TestViewsOfReplicas: another replica may come to a claim later, and then no more.
func TestViewsOfReplicas(t *testing.T) {
	h := viewed()
	h.Replicas = true
	late := func(at int64) {
		h.Sessions[len(h.Sessions)-1].Events = []Event{
			{Type: Bookmark, Object: Object{State: State{RV: 15}}, Time: at}, came(event(Added, a, a3), 40), came(bookmark(16), 40),
		}
	}
	late(seconds(30) + lag)
	require.Empty(t, Check(h))
	late(seconds(30) + 2*lag)
	require.NotEmpty(t, Check(h))
}
