package history

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The objects of a second server with its own resource versions.
var (
	remote  = key("ff", "a")
	remote1 = State{RV: 3, UID: "uid-f", Value: "f1", Label: "red"}
	remote2 = State{RV: 4, UID: "uid-f", Value: "f2", Label: "red"}
)

func both(root, shard uint64) Versions { return Versions{"root": root, "shard-1": shard} }

func item(server string, k Key, s State, at Versions) Item {
	s.Deleted = false
	return Item{Object: Object{k, s}, Server: server, At: at}
}

func mergedEvent(kind, server string, k Key, s State, at Versions) MergedEvent {
	return MergedEvent{Type: kind, Item: item(server, k, s, at)}
}

// validMerged is validHistory with a second server and clients of both.
func validMerged() *History {
	h := validHistory()
	onShard := func(kind Kind, expected, result State, start int64) *Op {
		op := write(kind, remote, expected, result, start)
		op.Domain.Server = "shard-1"
		return op
	}
	h.Ops = append(h.Ops, onShard(Create, State{}, remote1, 15), onShard(Update, remote1, remote2, 45))
	h.Merged = []*MergedSession{
		{ID: 20, Name: "list and watch", Resource: "configmaps", From: both(12, 3), Through: both(15, 4), Events: []MergedEvent{
			mergedEvent(Modified, "root", a, a2, both(13, 3)),
			mergedEvent(Modified, "shard-1", remote, remote2, both(13, 4)),
			mergedEvent(Deleted, "root", b, b2, both(14, 4)),
			mergedEvent(Modified, "root", a, a3, both(15, 4)),
			{Type: Bookmark, Item: Item{At: both(15, 4)}},
		}},
		{ID: 21, Name: "streaming", Resource: "configmaps", Streaming: true, Through: both(15, 4), Events: []MergedEvent{
			mergedEvent(Added, "root", a, a2, Versions{"root": 13}),
			mergedEvent(Added, "root", otherCluster, e1, Versions{"root": 12}),
			mergedEvent(Added, "root", b, b1, Versions{"root": 11}),
			mergedEvent(Added, "shard-1", remote, remote1, both(13, 3)),
			{Type: Bookmark, InitialEnd: true, Item: Item{At: both(13, 3)}},
			mergedEvent(Deleted, "root", b, b2, both(14, 3)),
			mergedEvent(Modified, "root", a, a3, both(15, 3)),
			mergedEvent(Modified, "shard-1", remote, remote2, both(15, 4)),
		}},
	}
	h.MergedLists = []*MergedList{{
		ID: 22, Name: "list", Resource: "configmaps", Start: 90, End: 92, Pages: []Versions{both(15, 4), both(15, 4)},
		Items: []Item{item("root", a, a3, both(15, 4)), item("root", otherCluster, e1, both(12, 4)), item("shard-1", remote, remote2, both(15, 4))},
	}}
	return h
}

func TestMerged(t *testing.T) {
	require.Empty(t, Check(validMerged()))
	testCorruptions(t, validMerged, []corruption{
		{name: "lost event of one server", want: Reliable, message: "the stream lacks MODIFIED", apply: func(h *History) {
			s := h.Merged[0]
			s.Events = append(s.Events[:1:1], s.Events[2:]...)
		}},
		{name: "version ahead of another server", want: Merged, message: "the version of MODIFIED", apply: func(h *History) {
			h.Merged[0].Events[0].At = both(13, 4)
		}},
		{name: "decreasing version", want: Merged, message: "the version of MODIFIED", apply: func(h *History) {
			h.Merged[1].Events[6].At = both(13, 3)
		}},
		{name: "bookmark ahead of the events", want: Reliable, message: "the initial events up to 14", apply: func(h *History) {
			h.Merged[1].Events[4].At = both(14, 3)
		}},
		{name: "version of initial events with an incomplete server", want: Merged, message: "an earlier version marks them as complete", apply: func(h *History) {
			h.Merged[1].Events[0], h.Merged[1].Events[3] = mergedEvent(Added, "shard-1", remote, remote1, both(13, 3)), h.Merged[1].Events[0]
		}},
		{name: "server missing in the initial events", want: Reliable, message: "the initial events up to 3", apply: func(h *History) {
			h.Merged[1].Events = append(h.Merged[1].Events[:3:3], h.Merged[1].Events[4:]...)
		}},
		{name: "pages at two versions", want: Merged, message: "page 2 is at", apply: func(h *History) {
			h.MergedLists[0].Pages[1] = both(16, 4)
		}},
		{name: "item ahead of the list", want: Merged, message: "in a list at", apply: func(h *History) {
			h.MergedLists[0].Items[1].At = both(12, 5)
		}},
		{name: "list lacks an object of one server", want: ListsAgree, apply: func(h *History) {
			h.MergedLists[0].Items = h.MergedLists[0].Items[:2]
		}},
	})
}
