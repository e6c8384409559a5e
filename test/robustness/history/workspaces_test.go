package history

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// inhabited is a history of workspaces in which nothing is wrong: one is made, used and deleted,
// and another one takes its name, which is there in the end; so is a third, whose creation nobody
// has answered.
func inhabited() *History {
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

// TestWorkspaces spoils the history of workspaces in one place at a time.
func TestWorkspaces(t *testing.T) {
	require.Empty(t, Check(inhabited()))
	for _, c := range []struct {
		name  string
		want  Property
		spoil func(*History)
	}{
		{"what was acknowledged is lost", WorkspacesKept, func(h *History) {
			h.WorkspaceOps[3] = &WorkspaceOp{Parent: "aa", Name: "x", Kind: Get, Outcome: NotFound, Start: 20, End: 25}
		}},
		{"what was acknowledged becomes another one", WorkspacesKept, func(h *History) { h.WorkspaceOps = slices.Delete(h.WorkspaceOps, 5, 8) }},
		{"what was acknowledged is not there in the end", WorkspacesKept, func(h *History) {
			h.Inventory.Workspaces, h.Inventory.Clusters = h.Inventory.Workspaces[1:], h.Inventory.Clusters[1:]
		}},
		{"what was deleted comes back", Removed, func(h *History) { h.WorkspaceOps[9].Seen = h.WorkspaceOps[4].Seen }},
		{"what was deleted is there in the end", Removed, func(h *History) {
			h.Inventory.Workspaces = append(h.Inventory.Workspaces, h.WorkspaceOps[4].Seen)
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "root", Name: "c1", Owner: "u1"})
		}},
		{"two of a name at once", Removed, func(h *History) { h.WorkspaceOps[6].Start, h.WorkspaceOps[6].End = 120, 125 }},
		{"its logical cluster stays", Removed, func(h *History) { h.WorkspaceUses[4].Code, h.WorkspaceUses[4].In = 200, "c1" }},
		{"its logical cluster is there in the end", Removed, func(h *History) {
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "root", Name: "c1", Owner: "u1"})
		}},
		{"a logical cluster that nobody has asked for stays", Removed, func(h *History) {
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "root", Name: "late", Owner: "gone"})
		}},
		{"two logical clusters, one after the other", OneLogicalCluster, func(h *History) { h.WorkspaceOps[6].Seen.Cluster = "c9" }},
		{"another one in the end", OneLogicalCluster, func(h *History) {
			h.Inventory.Workspaces[0].Cluster, h.Inventory.Clusters[0].Name = "c9", "c9"
		}},
		{"none in the end", OneLogicalCluster, func(h *History) { h.Inventory.Clusters = h.Inventory.Clusters[1:] }},
		{"not ready in the end", OneLogicalCluster, func(h *History) { h.Inventory.Workspaces[0].Ready = false }},
		{"one on two shards", OneLogicalCluster, func(h *History) {
			h.Inventory.Clusters = append(h.Inventory.Clusters, LogicalCluster{Shard: "shard-1", Name: "c2", Owner: "u2"})
		}},
		{"another one answers", OneLogicalCluster, func(h *History) { h.WorkspaceUses[0].In = "c2" }},
		{"ready without its namespace", ReadyIsUsable, func(h *History) { h.WorkspaceUses[5].Code = 404 }},
		{"ready, and nobody may enter", ReadyIsUsable, func(h *History) { h.WorkspaceUses[0].Code = 403 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := inhabited()
			c.spoil(h)
			violations := Check(h)
			require.True(t, slices.ContainsFunc(violations, func(v Violation) bool { return v.Property == c.want }), "want a violation of %q, got %v", c.want, violations)
		})
	}
}

// TestLateLogicalClusters: where a Workspace goes before it is Ready, its logical cluster may come after it.
func TestLateLogicalClusters(t *testing.T) {
	h := inhabited()
	h.WorkspaceUses[4].Code, h.WorkspaceUses[4].In = 200, "c1"
	for _, o := range h.WorkspaceOps {
		o.Seen.Ready = o.Seen.Ready && o.Seen.UID != "u1"
	}
	require.Empty(t, Check(h))
}

// TestContentOfRemovedWorkspaces: what is in a Workspace may go without anybody who sees it, but
// only when somebody has asked to delete that.
func TestContentOfRemovedWorkspaces(t *testing.T) {
	h := good()
	h.Sessions = append(h.Sessions,
		&Session{ID: 20, Name: "there", Domain: configMaps, Scope: Scope{Cluster: "c1"}, From: 10, Events: []Event{event(Added, key("c1", "a"), State{RV: 11, UID: "uid-c"})}},
		&Session{ID: 21, Name: "gone", Domain: configMaps, Scope: Scope{Cluster: "c1"}, Streaming: true, Events: []Event{initialEnd(15)}},
	)
	h.WorkspaceOps, h.Inventory = inhabited().WorkspaceOps, inhabited().Inventory
	require.Empty(t, Check(h))
	for _, o := range h.WorkspaceOps {
		if o.Seen.UID == "u1" {
			o.Seen.Cluster = "c4"
		}
	}
	require.NotEmpty(t, Check(h))
}
