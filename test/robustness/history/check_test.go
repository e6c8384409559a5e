package history

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	configMaps   = Domain{"root", "configmaps"}
	a, b         = key("aa", "a"), key("aa", "b")
	otherCluster = key("bb", "a")
	one          = Scope{Cluster: "aa"}
	red          = Scope{Cluster: "aa", Label: "red"}

	a1 = State{RV: 10, UID: "uid-a", Value: "v1", Label: "red"}
	b1 = State{RV: 11, UID: "uid-b", Value: "v2", Label: "blue"}
	e1 = State{RV: 12, UID: "uid-e", Value: "v3", Label: "red"}
	a2 = State{RV: 13, UID: "uid-a", Value: "v4", Label: "blue"}
	b2 = State{RV: 14, UID: "uid-b", Value: "v2", Label: "blue", Deleted: true}
	a3 = State{RV: 15, UID: "uid-a", Value: "v5", Label: "red"}
)

// The halves of the ring. Both contain UIDs of uid-a, uid-b and uid-e.
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

// at returns a state with the resource version of an event.
func at(s State, rv uint64) State {
	s.RV = rv
	return s
}

func write(kind Kind, k Key, expected, result State, start int64) *Op {
	return &Op{Domain: configMaps, Key: k, Kind: kind, Expected: expected, Value: result.Value, Start: start, End: start + 5, Outcome: OK, Result: result}
}

// validHistory has no violations. Two objects of logical cluster aa and one of bb are written in
// this order:
//
//	10 a red · 11 b · 12 (bb) · 13 a blue · 14 b deleted · 15 a red
func validHistory() *History {
	remove := write(Delete, b, b1, State{}, 50)
	read := &Op{Domain: configMaps, Key: a, Kind: Get, Start: 70, End: 72, Outcome: OK, Result: a3}
	lost := &Op{Domain: configMaps, Key: b, Kind: Create, Value: "lost", Start: 75, End: 80, Outcome: Unknown}
	all := []Event{
		event(Modified, a, a2), event(Deleted, b, b2), bookmark(14), event(Modified, a, a3),
	}
	coloured := []Event{event(Deleted, a, at(a1, 13)), event(Added, a, a3)}
	parts := map[bool][]Object{}
	for k, s := range map[Key]State{a: a3, otherCluster: e1} {
		inLower := Scope{Ranges: lower}.Selects(k, s)
		parts[inLower] = append(parts[inLower], Object{k, s})
	}
	return &History{
		Ops: []*Op{
			write(Create, a, State{}, a1, 10), write(Create, b, State{}, b1, 20), write(Create, otherCluster, State{}, e1, 30),
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
			{ID: 2, Name: "whole", Domain: configMaps, Start: 68, End: 69, Match: Consistent, Group: 1, Pages: []Page{{RV: 15}}, Items: []Object{{a, a3}, {otherCluster, e1}}},
			{ID: 3, Name: "lower", Domain: configMaps, Scope: Scope{Ranges: lower}, Start: 70, End: 71, Match: Exact, Wanted: 15, Group: 1, Pages: []Page{{RV: 15}}, Items: parts[true]},
			{ID: 4, Name: "upper", Domain: configMaps, Scope: Scope{Ranges: upper}, Start: 70, End: 71, Match: NotOlderThan, Wanted: 15, Group: 1, Pages: []Page{{RV: 15}}, Items: parts[false]},
		},
		Errors: []ErrorResponse{{Cluster: "aa", Text: `configmaps "x" not found`}},
		Probes: []Probe{{Name: "token of bb in aa", Code: http.StatusBadRequest}},
	}
}

// without removes event i of session n.
func without(n, i int) func(*History) {
	return func(h *History) { h.Sessions[n].Events = slices.Delete(slices.Clone(h.Sessions[n].Events), i, i+1) }
}

// with inserts an event before event i of session n.
func with(n, i int, e Event) func(*History) {
	return func(h *History) { h.Sessions[n].Events = slices.Insert(slices.Clone(h.Sessions[n].Events), i, e) }
}

// instead replaces event i of session n.
func instead(n, i int, e Event) func(*History) {
	return func(h *History) {
		h.Sessions[n].Events = slices.Clone(h.Sessions[n].Events)
		h.Sessions[n].Events[i] = e
	}
}

func TestValidHistory(t *testing.T) {
	require.Empty(t, Check(validHistory()))
}

// corruption is a change of a valid history that violates a property.
type corruption struct {
	name  string
	want  Property
	apply func(*History)
	// message is contained in the expected violation, if set.
	message string
}

// testCorruptions checks that Check reports each of the corruptions of a valid history.
func testCorruptions(t *testing.T, valid func() *History, all []corruption) {
	t.Helper()
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			h := valid()
			c.apply(h)
			violations := Check(h)
			require.True(t, slices.ContainsFunc(violations, func(v Violation) bool {
				return v.Property == c.want && strings.Contains(v.What, c.message)
			}), "want a violation of %q with %q, got %v", c.want, c.message, violations)
		})
	}
}

func TestInvalidHistories(t *testing.T) {
	object := func(list, item int, s State) func(*History) {
		return func(h *History) { h.Lists[list].Items[item].State = s }
	}
	testCorruptions(t, validHistory, []corruption{
		{name: "event in the wrong order", want: Ordered, apply: func(h *History) {
			h.Sessions[0].Events = []Event{h.Sessions[0].Events[1], h.Sessions[0].Events[0], h.Sessions[0].Events[3]}
		}},
		{name: "decreasing bookmark", want: Ordered, apply: with(0, 4, bookmark(14))},
		{name: "repeated event", want: Unique, apply: with(0, 1, event(Modified, a, a2))},
		{name: "repeated initial event", want: Unique, apply: with(3, 1, event(Added, b, b1))},
		{name: "lost event", want: Reliable, apply: without(0, 1)},
		{name: "lost last event", want: Reliable, apply: without(0, 3)},
		{name: "lost selected event", want: Reliable, apply: without(1, 1)},
		{name: "lost initial object", want: Reliable, apply: without(3, 0)},
		{name: "outdated initial object", want: Reliable, apply: without(3, 2)},
		{name: "unexpected initial object", want: Reliable, apply: with(3, 0, event(Added, otherCluster, e1))},
		{name: "acknowledged deletion that no client observed", want: Reliable, apply: func(h *History) {
			without(0, 1)(h)
			without(2, 0)(h)
			without(3, 4)(h)
			h.Lists = nil
		}},
		{name: "lost first event of a resumed stream", want: Resumable, apply: without(2, 0)},
		{name: "resumed stream that repeats an event", want: Resumable, apply: with(2, 0, event(Modified, a, a2))},
		{name: "event after its bookmark", want: Bookmarkable, apply: instead(0, 2, bookmark(15))},
		{name: "early bookmark of a streamed list", want: Bookmarkable, apply: with(3, 4, bookmark(14))},
		{name: "repeated ADDED", want: Transitions, apply: instead(0, 0, event(Added, a, a2))},
		{name: "MODIFIED for an object that leaves the selector", want: Transitions, apply: instead(1, 0, event(Modified, a, a2))},
		{name: "deletion with an older state", want: Transitions, apply: instead(1, 0, event(Deleted, a, at(State{UID: "uid-a", Value: "v0", Label: "red"}, 13)))},
		{name: "object that the selector does not match", want: Transitions, apply: with(1, 1, event(Added, b, at(b1, 14)))},
		{name: "contradicting clients", want: Transitions, apply: instead(2, 2, event(Modified, a, State{RV: 15, UID: "uid-a", Value: "v4", Label: "red"}))},
		{name: "lost page", want: ListsAgree, apply: func(h *History) { h.Lists[0].Items = h.Lists[0].Items[:1] }},
		{name: "item in two pages", want: ListsAgree, apply: func(h *History) {
			h.Lists[0].Items = append(h.Lists[0].Items, h.Lists[0].Items[0])
		}},
		{name: "page at another version", want: ListsAgree, apply: func(h *History) { h.Lists[0].Pages[1].RV = 13 }},
		{name: "last page with a continue token", want: ListsAgree, apply: func(h *History) { h.Lists[0].Pages[1].More = true }},
		{name: "filtered list with a number of remaining items", want: ListsAgree, apply: func(h *History) {
			h.Lists[3].Pages[0].Remaining = true
		}},
		{name: "list with an older state", want: ListsAgree, apply: object(1, 0, a2)},
		{name: "list with a later state", want: ListsAgree, apply: object(0, 0, a2)},
		{name: "list with a deleted object", want: ListsAgree, apply: func(h *History) {
			h.Lists[1].Items = append(h.Lists[1].Items, Object{b, b1})
		}},
		{name: "exact list at another version", want: ListsAgree, apply: func(h *History) { h.Lists[3].Wanted = 14 }},
		{name: "list older than requested", want: ListsAgree, apply: func(h *History) { h.Lists[4].Wanted = 16 }},
		{name: "list and watch that do not add up to a later list", want: ListsAgree, apply: without(0, 1)},
		{name: "stale consistent list", want: ReadsOwnWrites, apply: func(h *History) {
			h.Lists[1].Pages[0].RV, h.Lists[1].Items = 14, []Object{{a, a2}}
		}},
		{name: "consistent list with an object that was deleted before", want: ReadsOwnWrites, apply: func(h *History) {
			h.Lists[1].Pages[0].RV, h.Lists[1].Items = 13, []Object{{a, a2}, {b, b1}}
		}},
		{name: "list older than the list before it", want: ReadsOwnWrites, apply: func(h *History) {
			h.Lists[1].Start, h.Lists[1].End = 31, 32
		}},
		{name: "object in no part", want: ShardsAddUp, apply: func(h *History) { h.Lists[3].Items, h.Lists[4].Items = nil, nil }},
		{name: "object in two parts", want: ShardsAddUp, apply: func(h *History) {
			h.Lists[3].Items = append(h.Lists[3].Items, Object{a, a3})
			h.Lists[4].Items = append(h.Lists[4].Items, Object{a, a3})
		}},
		{name: "part at another version", want: ShardsAddUp, apply: func(h *History) { h.Lists[4].Pages[0].RV = 16 }},
		{name: "list with an object of another logical cluster", want: Isolated, apply: func(h *History) {
			h.Lists[1].Items = append(h.Lists[1].Items, Object{otherCluster, e1})
		}},
		{name: "event of an object of another logical cluster", want: Isolated, apply: with(0, 0, event(Added, otherCluster, at(e1, 13)))},
		{name: "value of another object", want: Isolated, apply: object(1, 0, State{RV: 15, UID: "uid-a", Value: "v3", Label: "red"})},
		{name: "value that no client wrote", want: Isolated, apply: object(1, 0, State{RV: 15, UID: "uid-a", Value: "v99", Label: "red"})},
		{name: "error message with another logical cluster", want: Isolated, apply: func(h *History) {
			h.Errors[0].Text = "conflicts with bb"
		}},
		{name: "accepted continue token of another logical cluster", want: Isolated, apply: func(h *History) {
			h.Probes[0].Code = http.StatusOK
		}},
		{name: "stale read", want: Linearizable, apply: func(h *History) { h.Ops[6].Result = a2 }},
		{name: "lost update", want: Linearizable, apply: func(h *History) { h.Ops[5].Expected = a1 }},
		{name: "update of a missing object", want: Linearizable, apply: func(h *History) { h.Ops[3].Start, h.Ops[3].End = 1, 2 }},
		{name: "unexpected NotFound", want: Linearizable, apply: func(h *History) { h.Ops[6].Outcome = NotFound }},
	})
}

// TestUnknownOutcomes checks that outcomes which no client observed are not violations.
func TestUnknownOutcomes(t *testing.T) {
	t.Run("a lost create took effect", func(t *testing.T) {
		h := validHistory()
		h.Sessions[0].Events = append(slices.Clone(h.Sessions[0].Events), event(Added, b, State{RV: 16, UID: "uid-b2", Value: "lost"}))
		require.Empty(t, Check(h))
	})
	t.Run("a stream is cut off within its initial events", func(t *testing.T) {
		h := validHistory()
		h.Sessions[3].Events = h.Sessions[3].Events[:1]
		require.Empty(t, Check(h))
	})
	t.Run("a deletion that only a list shows", func(t *testing.T) {
		h := validHistory()
		for _, s := range h.Sessions {
			s.Events, s.Through = nil, 0
		}
		require.Empty(t, Check(h))
	})
	t.Run("a deletion that only a stream with a selector shows", func(t *testing.T) {
		h := validHistory()
		h.Sessions = []*Session{{Name: "blue", Domain: configMaps, Scope: Scope{Cluster: "aa", Label: "blue"}, From: 13, Through: 15, Events: []Event{event(Deleted, b, b2), event(Deleted, a, at(a2, 15))}}}
		h.Lists = nil
		require.Empty(t, Check(h))
		without(0, 0)(h)
		require.NotEmpty(t, Check(h), "the stream lacks the deletion")
	})
	t.Run("an update without a response was not made", func(t *testing.T) {
		h := validHistory()
		h.Ops = append(h.Ops, &Op{Domain: configMaps, Key: a, Kind: Update, Expected: a3, Value: "v6", Start: 61, End: 90, Outcome: Unknown},
			&Op{Domain: configMaps, Key: a, Kind: Get, Start: 100, End: 101, Outcome: OK, Result: a3})
		require.Empty(t, Check(h))
	})
}

// TestUpserts checks that an upsert creates a missing object, and requires the expected state of an
// existing one.
func TestUpserts(t *testing.T) {
	h := validHistory()
	upsert := write(Update, b, b1, State{RV: 17, UID: "uid-b2", Value: "v7"}, 90)
	h.Ops = append(h.Ops, upsert)
	require.NotEmpty(t, Check(h), "an update that may not create")
	upsert.Upsert = true
	require.Empty(t, Check(h))
	upsert.Key, upsert.Expected = a, a2
	require.NotEmpty(t, Check(h), "a lost update")
}

// TestControllerWrites checks that an update may conflict with a write of a controller.
func TestControllerWrites(t *testing.T) {
	h := validHistory()
	conflict := write(Update, a, a3, State{}, 90)
	conflict.Outcome, conflict.Value = Conflict, "v7"
	h.Ops = append(h.Ops, conflict)
	require.NotEmpty(t, Check(h), "a conflict without another write")
	conflict.ControllerWrites = true
	require.Empty(t, Check(h))
}

func TestScopes(t *testing.T) {
	for _, s := range []State{a1, b1, e1} {
		inLower, inUpper := Scope{Ranges: lower}.Selects(a, s), Scope{Ranges: upper}.Selects(a, s)
		require.NotEqual(t, inLower, inUpper, "the UID is not in exactly one half")
	}
	// FNV-1a of "" is the offset basis, which is in the upper half.
	require.True(t, Scope{By: ByNamespace, Ranges: upper}.Selects(Key{}, a1))
	// The hashes of "aa" and "a" are in different halves.
	for _, s := range []State{a1, b1} {
		require.True(t, Scope{By: ByCluster, Ranges: lower}.Selects(Key{Cluster: "aa"}, s))
		require.True(t, Scope{By: ByCluster, Ranges: upper}.Selects(Key{Cluster: "a"}, s))
	}
	require.False(t, Scope{Cluster: "bb"}.Selects(a, a1))
	require.False(t, red.Selects(a, a2))
}
