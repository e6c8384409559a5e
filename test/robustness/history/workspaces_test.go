package history

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// validWorkspaces is a history of workspaces without violations. u1 is created, used and deleted.
// u2 has the same name and is in the inventory. So is u3, although the response to its creation was
// lost.
func validWorkspaces() *History {
	op := func(kind Kind, outcome Outcome, start int64, name, uid, cluster string) *WorkspaceOp {
		return &WorkspaceOp{
			Parent: "aa", Name: name, Kind: kind, Outcome: outcome, Start: start, End: start + 5,
			Seen: Workspace{Parent: "aa", Name: name, UID: uid, Cluster: cluster, Ready: cluster != ""},
		}
	}
	use := func(start int64, uid, cluster string, code int, writes bool) *WorkspaceUse {
		u := &WorkspaceUse{UID: uid, Cluster: cluster, Start: start, End: start + 5, Code: code, Writes: writes}
		if code < 300 {
			u.In = cluster
		}
		return u
	}
	replaced := use(95, "u1", "c1", 201, true)
	replaced.In = "c2"
	return &History{
		WorkspaceOps: []*WorkspaceOp{
			op(Create, OK, 10, "x", "u1", ""), op(Create, Exists, 12, "x", "", ""), op(Create, Unknown, 14, "y", "", ""),
			op(Get, OK, 20, "x", "u1", ""), op(Get, OK, 30, "x", "u1", "c1"), op(Delete, OK, 60, "x", "u1", "c1"),
			op(Get, OK, 70, "x", "u1", "c1"), op(Get, NotFound, 80, "x", "", ""), op(Create, OK, 90, "x", "u2", ""), op(Get, OK, 100, "x", "u2", "c2"),
			op(Get, OK, 100, "y", "u3", "c3"),
		},
		WorkspaceUses: []*WorkspaceUse{
			use(40, "u1", "c1", 201, true), replaced, use(50, "u1", "c1", 200, false), use(58, "u1", "c1", 404, true), use(90, "u1", "c1", 403, false), use(110, "u2", "c2", 201, true), use(120, "u2", "c2", 503, true),
		},
		Inventory: &Inventory{
			At: 200,
			Workspaces: []Workspace{
				{Parent: "aa", Name: "x", UID: "u2", Cluster: "c2", Ready: true}, {Parent: "aa", Name: "y", UID: "u3", Cluster: "c3", Ready: true},
			},
			Clusters: []LogicalCluster{{Shard: "root", Name: "c2", Owner: "u2"}, {Shard: "shard-1", Name: "c3", Owner: "u3"}},
		},
	}
}

func TestWorkspaces(t *testing.T) {
	require.Empty(t, Check(validWorkspaces()))
	testCorruptions(t, validWorkspaces, []corruption{
		{name: "lost workspace", want: WorkspacesKept, apply: func(h *History) {
			h.WorkspaceOps[3] = &WorkspaceOp{Parent: "aa", Name: "x", Kind: Get, Outcome: NotFound, Start: 20, End: 25}
		}},
		{name: "workspace replaced without deletion", want: WorkspacesKept, apply: func(h *History) {
			h.WorkspaceOps = slices.Delete(h.WorkspaceOps, 5, 8)
		}},
		{name: "workspace missing in the inventory", want: WorkspacesKept, apply: func(h *History) {
			h.Inventory.Workspaces, h.Inventory.Clusters = h.Inventory.Workspaces[1:], h.Inventory.Clusters[1:]
		}},
		{name: "deleted workspace reappears", want: Removed, apply: func(h *History) { h.WorkspaceOps[9].Seen = h.WorkspaceOps[4].Seen }},
		{name: "deleted workspace in the inventory", want: Removed, apply: func(h *History) {
			h.Inventory.Workspaces = append(h.Inventory.Workspaces, h.WorkspaceOps[4].Seen)
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "root", Name: "c1", Owner: "u1"})
		}},
		{name: "two workspaces with a name", want: Removed, apply: func(h *History) {
			h.WorkspaceOps[6].Start, h.WorkspaceOps[6].End = 120, 125
		}},
		{name: "logical cluster outlives its workspace", want: Removed, apply: func(h *History) {
			h.WorkspaceUses[4].Code, h.WorkspaceUses[4].In = 200, "c1"
		}},
		{name: "logical cluster of a deleted workspace in the inventory", want: Removed, apply: func(h *History) {
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "root", Name: "c1", Owner: "u1"})
		}},
		{name: "logical cluster without a workspace", want: Removed, apply: func(h *History) {
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "root", Name: "late", Owner: "deleted"})
		}},
		{name: "changed logical cluster", want: OneLogicalCluster, apply: func(h *History) { h.WorkspaceOps[6].Seen.Cluster = "c9" }},
		{name: "other logical cluster in the inventory", want: OneLogicalCluster, apply: func(h *History) {
			h.Inventory.Workspaces[0].Cluster, h.Inventory.Clusters[0].Name = "c9", "c9"
		}},
		{name: "no logical cluster in the inventory", want: OneLogicalCluster, apply: func(h *History) {
			h.Inventory.Clusters = h.Inventory.Clusters[1:]
		}},
		{name: "not ready in the inventory", want: OneLogicalCluster, apply: func(h *History) { h.Inventory.Workspaces[0].Ready = false }},
		{name: "logical cluster on two shards", want: OneLogicalCluster, apply: func(h *History) {
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "shard-1", Name: "c2", Owner: "u2"})
		}},
		{name: "response of another logical cluster", want: OneLogicalCluster, apply: func(h *History) { h.WorkspaceUses[0].In = "c2" }},
		{name: "ready without its namespace", want: ReadyIsUsable, apply: func(h *History) { h.WorkspaceUses[5].Code = 404 }},
		{name: "ready but forbidden", want: ReadyIsUsable, apply: func(h *History) { h.WorkspaceUses[0].Code = 403 }},
	})
}

// TestLateLogicalClusters checks that a logical cluster may be created after its Workspace was
// deleted, if the Workspace was never Ready.
func TestLateLogicalClusters(t *testing.T) {
	h := validWorkspaces()
	h.WorkspaceUses[4].Code, h.WorkspaceUses[4].In = 200, "c1"
	for _, o := range h.WorkspaceOps {
		o.Seen.Ready = o.Seen.Ready && o.Seen.UID != "u1"
	}
	require.Empty(t, Check(h))
}

// TestContentOfRemovedWorkspaces checks that the content of a Workspace may disappear without an
// event, but only if the deletion of the Workspace was requested.
func TestContentOfRemovedWorkspaces(t *testing.T) {
	h := validHistory()
	h.Sessions = append(h.Sessions,
		&Session{ID: 20, Name: "there", Domain: configMaps, Scope: Scope{Cluster: "c1"}, From: 10, Events: []Event{event(Added, key("c1", "a"), State{RV: 11, UID: "uid-c"})}},
		&Session{ID: 21, Name: "deleted", Domain: configMaps, Scope: Scope{Cluster: "c1"}, Streaming: true, Events: []Event{initialEnd(15)}},
	)
	h.WorkspaceOps, h.Inventory = validWorkspaces().WorkspaceOps, validWorkspaces().Inventory
	require.Empty(t, Check(h))
	for _, o := range h.WorkspaceOps {
		if o.Seen.UID == "u1" {
			o.Seen.Cluster = "c4"
		}
	}
	require.NotEmpty(t, Check(h))
}
