package history

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The objects of a second server, whose resource versions are others.
var (
	far  = key("ff", "a")
	far1 = State{RV: 3, UID: "uid-f", Value: "f1", Label: "red"}
	far2 = State{RV: 4, UID: "uid-f", Value: "f2", Label: "red"}
)

func both(root, shard uint64) Versions { return Versions{"root": root, "shard-1": shard} }

func item(server string, k Key, s State, at Versions) Item {
	s.Deleted = false
	return Item{Object: Object{k, s}, Server: server, At: at}
}

func mergedEvent(kind, server string, k Key, s State, at Versions) MergedEvent {
	return MergedEvent{Type: kind, Item: item(server, k, s, at)}
}

// goodMerged is the history of good, with another server beside, and clients that follow both.
func goodMerged() *History {
	h := good()
	onShard := func(kind Kind, expected, result State, start int64) *Op {
		op := write(kind, far, expected, result, start)
		op.Domain.Server = "shard-1"
		return op
	}
	h.Ops = append(h.Ops, onShard(Create, State{}, far1, 15), onShard(Update, far1, far2, 45))
	h.Merged = []*MergedSession{
		{ID: 20, Name: "list and watch", Resource: "configmaps", From: both(12, 3), Through: both(15, 4), Events: []MergedEvent{
			mergedEvent(Modified, "root", a, a2, both(13, 3)),
			mergedEvent(Modified, "shard-1", far, far2, both(13, 4)),
			mergedEvent(Deleted, "root", b, b2, both(14, 4)),
			mergedEvent(Modified, "root", a, a3, both(15, 4)),
			{Type: Bookmark, Item: Item{At: both(15, 4)}},
		}},
		{ID: 21, Name: "streaming", Resource: "configmaps", Streaming: true, Through: both(15, 4), Events: []MergedEvent{
			mergedEvent(Added, "root", a, a2, Versions{"root": 13}),
			mergedEvent(Added, "root", elsewhere, e1, Versions{"root": 12}),
			mergedEvent(Added, "root", b, b1, Versions{"root": 11}),
			mergedEvent(Added, "shard-1", far, far1, both(13, 3)),
			{Type: Bookmark, InitialEnd: true, Item: Item{At: both(13, 3)}},
			mergedEvent(Deleted, "root", b, b2, both(14, 3)),
			mergedEvent(Modified, "root", a, a3, both(15, 3)),
			mergedEvent(Modified, "shard-1", far, far2, both(15, 4)),
		}},
	}
	h.MergedLists = []*MergedList{{
		ID: 22, Name: "list", Resource: "configmaps", Start: 90, End: 92, Pages: []Versions{both(15, 4), both(15, 4)},
		Items: []Item{item("root", a, a3, both(15, 4)), item("root", elsewhere, e1, both(12, 4)), item("shard-1", far, far2, both(15, 4))},
	}}
	return h
}

func TestMerged(t *testing.T) {
	require.Empty(t, Check(goodMerged()))
	for name, tc := range map[string]struct {
		spoil    func(h *History)
		property Property
		what     string
	}{
		"an event of one server is lost": {func(h *History) {
			s := h.Merged[0]
			s.Events = append(s.Events[:1:1], s.Events[2:]...)
		}, Reliable, "it lacks MODIFIED"},
		"a version promises too much of another server": {func(h *History) {
			h.Merged[0].Events[0].At = both(13, 4)
		}, Merged, "the version of MODIFIED"},
		"a version goes back": {func(h *History) {
			h.Merged[1].Events[6].At = both(13, 3)
		}, Merged, "the version of MODIFIED"},
		"a bookmark promises what was not told": {func(h *History) {
			h.Merged[1].Events[4].At = both(14, 3)
		}, Reliable, "the initial events up to 14"},
		"a version among initial events has a server that is not complete": {func(h *History) {
			h.Merged[1].Events[0], h.Merged[1].Events[3] = mergedEvent(Added, "shard-1", far, far1, both(13, 3)), h.Merged[1].Events[0]
		}, Merged, "an earlier version has them all"},
		"a server is missing at the end of initial events": {func(h *History) {
			h.Merged[1].Events = append(h.Merged[1].Events[:3:3], h.Merged[1].Events[4:]...)
		}, Reliable, "the initial events up to 3"},
		"pages are of two versions": {func(h *History) {
			h.MergedLists[0].Pages[1] = both(16, 4)
		}, Merged, "page 2 is at"},
		"an item promises another server's": {func(h *History) {
			h.MergedLists[0].Items[1].At = both(12, 5)
		}, Merged, "in a list at"},
		"a list lacks an object of one server": {func(h *History) {
			h.MergedLists[0].Items = h.MergedLists[0].Items[:2]
		}, ListsAgree, ""},
	} {
		h := goodMerged()
		tc.spoil(h)
		violations := Check(h)
		require.True(t, slices.ContainsFunc(violations, func(v Violation) bool {
			return v.Property == tc.property && strings.Contains(v.What, tc.what)
		}), "%s: %v", name, violations)
	}
}
