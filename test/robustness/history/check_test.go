package history

import (
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	configMaps = Domain{"root", "configmaps"}
	a, b       = key("aa", "a"), key("aa", "b")
	elsewhere  = key("bb", "a")
	one        = Scope{Cluster: "aa"}
	red        = Scope{Cluster: "aa", Label: "red"}

	a1 = State{RV: 10, UID: "uid-a", Value: "v1", Label: "red"}
	b1 = State{RV: 11, UID: "uid-b", Value: "v2", Label: "blue"}
	e1 = State{RV: 12, UID: "uid-e", Value: "v3", Label: "red"}
	a2 = State{RV: 13, UID: "uid-a", Value: "v4", Label: "blue"}
	b2 = State{RV: 14, UID: "uid-b", Value: "v2", Label: "blue", Deleted: true}
	a3 = State{RV: 15, UID: "uid-a", Value: "v5", Label: "red"}
)

// The halves of the ring, of which uid-a, uid-b and uid-e are in both.
var (
	lower = []Range{{0, math.MaxUint64 / 2}}
	upper = []Range{{math.MaxUint64/2 + 1, math.MaxUint64}}
)

func key(cluster, name string) Key { return Key{Cluster: cluster, Namespace: "default", Name: name} }

func event(kind string, k Key, s State) Event {
	s.Deleted = false
	return Event{Type: kind, Object: Object{k, s}}
}

func bookmark(rv uint64) Event {
	return Event{Type: Bookmark, Object: Object{State: State{RV: rv}}}
}

func initialEnd(rv uint64) Event {
	e := bookmark(rv)
	e.InitialEnd = true
	return e
}

// at gives a state the resource version of an event.
func at(s State, rv uint64) State {
	s.RV = rv
	return s
}

func write(kind Kind, k Key, expected, result State, start int64) *Op {
	return &Op{Domain: configMaps, Key: k, Kind: kind, Expected: expected, Value: result.Value, Start: start, End: start + 5, Outcome: OK, Result: result}
}

// good is a history in which nothing is wrong. Two objects of logical cluster aa
// and one of bb are written, in this order:
//
//	10 a red · 11 b · 12 (bb) · 13 a blue · 14 b deleted · 15 a red
func good() *History {
	remove := write(Delete, b, b1, State{}, 50)
	read := &Op{Domain: configMaps, Key: a, Kind: Get, Start: 70, End: 72, Outcome: OK, Result: a3}
	lost := &Op{Domain: configMaps, Key: b, Kind: Create, Value: "lost", Start: 75, End: 80, Outcome: Unknown}
	all := []Event{
		event(Modified, a, a2), event(Deleted, b, b2), bookmark(14), event(Modified, a, a3),
	}
	coloured := []Event{event(Deleted, a, at(a1, 13)), event(Added, a, a3)}
	parts := map[bool][]Object{}
	for k, s := range map[Key]State{a: a3, elsewhere: e1} {
		inLower := Scope{Ranges: lower}.Selects(k, s)
		parts[inLower] = append(parts[inLower], Object{k, s})
	}
	return &History{
		Ops: []*Op{
			write(Create, a, State{}, a1, 10), write(Create, b, State{}, b1, 20), write(Create, elsewhere, State{}, e1, 30),
			write(Update, a, a1, a2, 40), remove, write(Update, a, a2, a3, 60), read, lost,
		},
		Sessions: []*Session{
			{ID: 0, Name: "one", Domain: configMaps, Scope: one, From: 12, Events: all, Through: 15},
			{ID: 1, Name: "red", Domain: configMaps, Scope: red, From: 12, Events: coloured, Through: 15},
			{ID: 2, Name: "resumed", Domain: configMaps, Scope: one, From: 13, Resumed: true, Events: all[1:]},
			{ID: 3, Name: "streaming", Domain: configMaps, Scope: one, Streaming: true, Events: []Event{
				event(Added, b, b1), event(Added, a, a1), event(Modified, a, a2), initialEnd(13), event(Deleted, b, b2), event(Modified, a, a3),
			}},
		},
		Lists: []*List{
			{ID: 0, Name: "before", Domain: configMaps, Scope: one, Start: 36, End: 38, Match: Consistent, Pages: []Page{{RV: 12, More: true, Remaining: true}, {RV: 12}}, Items: []Object{{a, a1}, {b, b1}}},
			{ID: 1, Name: "after", Domain: configMaps, Scope: one, Start: 68, End: 69, Match: Consistent, Pages: []Page{{RV: 15}}, Items: []Object{{a, a3}}},
			{ID: 2, Name: "whole", Domain: configMaps, Start: 68, End: 69, Match: Consistent, Group: 1, Pages: []Page{{RV: 15}}, Items: []Object{{a, a3}, {elsewhere, e1}}},
			{ID: 3, Name: "lower", Domain: configMaps, Scope: Scope{Ranges: lower}, Start: 70, End: 71, Match: Exact, Wanted: 15, Group: 1, Pages: []Page{{RV: 15}}, Items: parts[true]},
			{ID: 4, Name: "upper", Domain: configMaps, Scope: Scope{Ranges: upper}, Start: 70, End: 71, Match: NotOlderThan, Wanted: 15, Group: 1, Pages: []Page{{RV: 15}}, Items: parts[false]},
		},
		Errors: []Said{{Cluster: "aa", Text: `configmaps "x" not found`}},
		Probes: []Probe{{Name: "token of bb in aa", Code: http.StatusBadRequest}},
	}
}

// without removes the event at index i of session n.
func without(n, i int) func(*History) {
	return func(h *History) { h.Sessions[n].Events = slices.Delete(slices.Clone(h.Sessions[n].Events), i, i+1) }
}

// with puts an event into session n, before index i.
func with(n, i int, e Event) func(*History) {
	return func(h *History) { h.Sessions[n].Events = slices.Insert(slices.Clone(h.Sessions[n].Events), i, e) }
}

// instead replaces the event at index i of session n.
func instead(n, i int, e Event) func(*History) {
	return func(h *History) {
		h.Sessions[n].Events = slices.Clone(h.Sessions[n].Events)
		h.Sessions[n].Events[i] = e
	}
}

func TestGoodHistory(t *testing.T) {
	require.Empty(t, Check(good()))
}

// TestBadHistories spoils the good history in one place at a time: each property
// can be broken, and the break is found.
func TestBadHistories(t *testing.T) {
	object := func(list, item int, s State) func(*History) {
		return func(h *History) { h.Lists[list].Items[item].State = s }
	}
	for _, c := range []struct {
		name  string
		want  Property
		spoil func(*History)
	}{
		{"an event comes late", Ordered, func(h *History) {
			h.Sessions[0].Events = []Event{h.Sessions[0].Events[1], h.Sessions[0].Events[0], h.Sessions[0].Events[3]}
		}},
		{"a bookmark goes back", Ordered, with(0, 4, bookmark(14))},
		{"an event comes twice", Unique, with(0, 1, event(Modified, a, a2))},
		{"an initial event comes twice", Unique, with(3, 1, event(Added, b, b1))},
		{"an event is lost", Reliable, without(0, 1)},
		{"the last event does not come", Reliable, without(0, 3)},
		{"a selected event is lost", Reliable, without(1, 1)},
		{"an initial object is lost", Reliable, without(3, 0)},
		{"an initial object is outdated", Reliable, without(3, 2)},
		{"an initial object is not there", Reliable, with(3, 0, event(Added, elsewhere, e1))},
		{"nobody sees a deletion that was acknowledged", Reliable, func(h *History) {
			without(0, 1)(h)
			without(2, 0)(h)
			without(3, 4)(h)
			h.Lists = nil
		}},
		{"the first event after a resumption is lost", Resumable, without(2, 0)},
		{"a resumption repeats", Resumable, with(2, 0, event(Modified, a, a2))},
		{"an event follows its bookmark", Bookmarkable, instead(0, 2, bookmark(15))},
		{"a later event of a streamed list is promised", Bookmarkable, func(h *History) {
			h.Sessions[3].Events = slices.Insert(slices.Clone(h.Sessions[3].Events), 4, bookmark(14))
		}},
		{"an object is added twice", Transitions, instead(0, 0, event(Added, a, a2))},
		{"leaving a selector is a modification", Transitions, instead(1, 0, event(Modified, a, a2))},
		{"a deletion carries an older state", Transitions, instead(1, 0, event(Deleted, a, at(State{UID: "uid-a", Value: "v0", Label: "red"}, 13)))},
		{"an object that is not selected", Transitions, with(1, 1, event(Added, b, at(b1, 14)))},
		{"two observers disagree", Transitions, instead(2, 2, event(Modified, a, State{RV: 15, UID: "uid-a", Value: "v4", Label: "red"}))},
		{"a page is lost", ListsAgree, func(h *History) { h.Lists[0].Items = h.Lists[0].Items[:1] }},
		{"an item is in two pages", ListsAgree, func(h *History) { h.Lists[0].Items = append(h.Lists[0].Items, h.Lists[0].Items[0]) }},
		{"a page is of another version", ListsAgree, func(h *History) { h.Lists[0].Pages[1].RV = 13 }},
		{"the last page is not the last", ListsAgree, func(h *History) { h.Lists[0].Pages[1].More = true }},
		{"a filtered list tells what remains", ListsAgree, func(h *History) { h.Lists[3].Pages[0].Remaining = true }},
		{"a list shows an older state", ListsAgree, object(1, 0, a2)},
		{"a list shows what comes later", ListsAgree, object(0, 0, a2)},
		{"a list shows what is deleted", ListsAgree, func(h *History) { h.Lists[1].Items = append(h.Lists[1].Items, Object{b, b1}) }},
		{"an exact list is of another version", ListsAgree, func(h *History) { h.Lists[3].Wanted = 14 }},
		{"a list is too old", ListsAgree, func(h *History) { h.Lists[4].Wanted = 16 }},
		{"a list and a watch do not make up a later list", ListsAgree, without(0, 1)},
		{"a consistent list is stale", ReadsOwnWrites, func(h *History) {
			h.Lists[1].Pages[0].RV, h.Lists[1].Items = 14, []Object{{a, a2}}
		}},
		{"a consistent list shows what was deleted before", ReadsOwnWrites, func(h *History) {
			h.Lists[1].Pages[0].RV, h.Lists[1].Items = 13, []Object{{a, a2}, {b, b1}}
		}},
		{"time goes back between lists", ReadsOwnWrites, func(h *History) {
			h.Lists[1].Start, h.Lists[1].End = 31, 32
		}},
		{"an object is in no part", ShardsAddUp, func(h *History) { h.Lists[3].Items, h.Lists[4].Items = nil, nil }},
		{"an object is in two parts", ShardsAddUp, func(h *History) {
			h.Lists[3].Items = append(h.Lists[3].Items, Object{a, a3})
			h.Lists[4].Items = append(h.Lists[4].Items, Object{a, a3})
		}},
		{"a part is of another version", ShardsAddUp, func(h *History) { h.Lists[4].Pages[0].RV = 16 }},
		{"a list of another logical cluster's object", Isolated, func(h *History) { h.Lists[1].Items = append(h.Lists[1].Items, Object{elsewhere, e1}) }},
		{"an event of another logical cluster's object", Isolated, with(0, 0, event(Added, elsewhere, at(e1, 13)))},
		{"content of another object", Isolated, object(1, 0, State{RV: 15, UID: "uid-a", Value: "v3", Label: "red"})},
		{"content that nobody wrote", Isolated, object(1, 0, State{RV: 15, UID: "uid-a", Value: "v99", Label: "red"})},
		{"an error text tells of another logical cluster", Isolated, func(h *History) { h.Errors[0].Text = "conflicts with bb" }},
		{"a token of another logical cluster works", Isolated, func(h *History) { h.Probes[0].Code = http.StatusOK }},
		{"a stale read", Linearizable, func(h *History) { h.Ops[6].Result = a2 }},
		{"a lost update", Linearizable, func(h *History) { h.Ops[5].Expected = a1 }},
		{"an update of what does not exist", Linearizable, func(h *History) { h.Ops[3].Start, h.Ops[3].End = 1, 2 }},
		{"a refusal without reason", Linearizable, func(h *History) { h.Ops[6].Outcome = NotFound }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good()
			c.spoil(h)
			violations := Check(h)
			require.True(t, slices.ContainsFunc(violations, func(v Violation) bool { return v.Property == c.want }),
				"want a violation of %q, got %v", c.want, violations)
		})
	}
}

// TestUnknownOutcomes holds that what nobody can know is no violation.
func TestUnknownOutcomes(t *testing.T) {
	t.Run("a lost create took effect", func(t *testing.T) {
		h := good()
		h.Sessions[0].Events = append(slices.Clone(h.Sessions[0].Events), event(Added, b, State{RV: 16, UID: "uid-b2", Value: "lost"}))
		require.Empty(t, Check(h))
	})
	t.Run("a stream is cut off within its initial events", func(t *testing.T) {
		h := good()
		h.Sessions[3].Events = h.Sessions[3].Events[:1]
		require.Empty(t, Check(h))
	})
	t.Run("a deletion that only a list shows", func(t *testing.T) {
		h := good()
		for _, s := range h.Sessions {
			s.Events, s.Through = nil, 0
		}
		require.Empty(t, Check(h))
	})
	t.Run("a deletion that only a stream with a selector shows", func(t *testing.T) {
		h := good()
		h.Sessions = []*Session{{Name: "blue", Domain: configMaps, Scope: Scope{Cluster: "aa", Label: "blue"}, From: 13, Through: 15, Events: []Event{event(Deleted, b, b2), event(Deleted, a, at(a2, 15))}}}
		h.Lists = nil
		require.Empty(t, Check(h))
		without(0, 0)(h)
		require.NotEmpty(t, Check(h), "it does not show it")
	})
	t.Run("an update without an answer was not made", func(t *testing.T) {
		h := good()
		h.Ops = append(h.Ops, &Op{Domain: configMaps, Key: a, Kind: Update, Expected: a3, Value: "v6", Start: 61, End: 90, Outcome: Unknown},
			&Op{Domain: configMaps, Key: a, Kind: Get, Start: 100, End: 101, Outcome: OK, Result: a3})
		require.Empty(t, Check(h))
	})
}

// TestUpserts holds that an update that may create does so where there is
// nothing, and is bound by what it expects where there is something.
func TestUpserts(t *testing.T) {
	h := good()
	upsert := write(Update, b, b1, State{RV: 17, UID: "uid-b2", Value: "v7"}, 90)
	h.Ops = append(h.Ops, upsert)
	require.NotEmpty(t, Check(h), "an update that may not create")
	upsert.Upsert = true
	require.Empty(t, Check(h))
	upsert.Key, upsert.Expected = a, a2
	require.NotEmpty(t, Check(h), "a lost update")
}

// TestMinded holds that what a controller writes as well may conflict with its own value.
func TestMinded(t *testing.T) {
	h := good()
	conflict := write(Update, a, a3, State{}, 90)
	conflict.Outcome, conflict.Value = Conflict, "v7"
	h.Ops = append(h.Ops, conflict)
	require.NotEmpty(t, Check(h), "nobody else wrote")
	conflict.Minded = true
	require.Empty(t, Check(h))
}

func TestScopes(t *testing.T) {
	for _, s := range []State{a1, b1, e1} {
		inLower, inUpper := Scope{Ranges: lower}.Selects(a, s), Scope{Ranges: upper}.Selects(a, s)
		require.NotEqual(t, inLower, inUpper, "a uid is in one half")
	}
	// FNV-1a of "" is the offset basis, which is in the upper half.
	require.True(t, Scope{By: ByNamespace, Ranges: upper}.Selects(Key{}, a1))
	// Those of "aa" and "a" are in different halves.
	for _, s := range []State{a1, b1} {
		require.True(t, Scope{By: ByCluster, Ranges: lower}.Selects(Key{Cluster: "aa"}, s))
		require.True(t, Scope{By: ByCluster, Ranges: upper}.Selects(Key{Cluster: "a"}, s))
	}
	require.False(t, Scope{Cluster: "bb"}.Selects(a, a1))
	require.False(t, red.Selects(a, a2))
}
