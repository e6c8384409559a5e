package history

import (
	"fmt"
	"slices"
)

// WorkspaceOp is a request for a Workspace.
type WorkspaceOp struct {
	ID int
	// Parent is the logical cluster of the Workspace, and Name its name.
	Parent, Name string
	Kind         Kind
	Start, End   int64
	// Outcome is OK, NotFound, Exists, Conflict or Unknown.
	Outcome Outcome
	// Seen is the Workspace in a response with the outcome OK. A deletion has the UID of Seen as
	// its precondition, whatever the outcome.
	Seen Workspace
}

// Workspace is the observed state of a Workspace.
type Workspace struct {
	Parent, Name, UID string
	// Cluster is its logical cluster, if already assigned.
	Cluster            string
	Ready, Terminating bool
}

func (o *WorkspaceOp) String() string {
	return fmt.Sprintf("%s %d of workspace %s in %s", o.Kind, o.ID, o.Name, o.Parent)
}

// WorkspaceUse is a request to the logical cluster of a Workspace.
type WorkspaceUse struct {
	ID           int
	UID, Cluster string
	Start, End   int64
	Code         int
	// Writes is true for a write to the namespace default of a Workspace that was Ready, by its
	// path. Another Workspace may have this path by now. In is the logical cluster that responded.
	Writes bool
	In     string
}

func (u *WorkspaceUse) String() string {
	return fmt.Sprintf("use %d of logical cluster %s", u.ID, u.Cluster)
}

// LogicalCluster is a logical cluster with a Workspace as owner.
type LogicalCluster struct {
	Shard, Name string
	// Owner is the UID of the Workspace.
	Owner string
}

// Inventory contains all Workspaces and logical clusters after all writers have finished.
type Inventory struct {
	At         int64
	Workspaces []Workspace
	Clusters   []LogicalCluster
}

// workspaceRecord merges all responses for the Workspace with a UID. Times are 0 if unset.
type workspaceRecord struct {
	Workspace
	// seen is the end of the first response that contains the Workspace.
	seen int64
	// ready is true if the Workspace was Ready in any response.
	ready bool
	// deleteRequested is when the first request to delete the Workspace was sent, and removed when a
	// response first showed that it does not exist any more.
	deleteRequested, removed int64
}

type workspaceCheck struct {
	*reporter

	records map[string]*workspaceRecord
}

// checkWorkspaces checks that acknowledged Workspaces exist until a client deletes them, have one
// logical cluster each, can be used when they are Ready, and are deleted with their logical cluster.
func checkWorkspaces(r *reporter, h *History) {
	c := &workspaceCheck{r, map[string]*workspaceRecord{}}
	for _, o := range h.WorkspaceOps {
		c.record(o)
	}
	for _, o := range h.WorkspaceOps {
		c.recordAbsent(o)
	}
	for _, o := range h.WorkspaceOps {
		c.checkNotReturned(o.Seen, o.Outcome == OK, o.Start, o)
	}
	for _, u := range h.WorkspaceUses {
		c.use(u)
	}
	if h.Inventory != nil {
		c.inventory(h.Inventory)
	}
}

// record stores the Workspace of a response.
func (c *workspaceCheck) record(o *WorkspaceOp) {
	if o.Seen.UID == "" {
		return
	}
	l := c.records[o.Seen.UID]
	if l == nil {
		l = &workspaceRecord{Workspace: o.Seen}
		c.records[o.Seen.UID] = l
	}
	if o.Kind == Delete && (l.deleteRequested == 0 || o.Start < l.deleteRequested) {
		l.deleteRequested = o.Start
	}
	if o.Outcome != OK {
		return
	}
	if l.seen == 0 || o.End < l.seen {
		l.seen = o.End
	}
	l.ready = l.ready || o.Seen.Ready
	switch {
	case l.Cluster == "":
		l.Cluster = o.Seen.Cluster
	case o.Seen.Cluster != "" && o.Seen.Cluster != l.Cluster:
		c.report(OneLogicalCluster, o, "logical cluster %s, previously %s", o.Seen.Cluster, l.Cluster)
	}
}

// recordAbsent stores which Workspaces a response shows not to exist: all with the name, or all but
// one.
func (c *workspaceCheck) recordAbsent(o *WorkspaceOp) {
	if o.Outcome != OK && (o.Outcome != NotFound || o.Kind != Get) {
		return
	}
	for uid, l := range c.records {
		if l.Parent != o.Parent || l.Name != o.Name || uid == o.Seen.UID || l.seen == 0 || l.seen > o.Start {
			continue
		}
		if l.removed == 0 || o.End < l.removed {
			l.removed = o.End
		}
		if l.deleteRequested == 0 || l.deleteRequested > o.End {
			c.report(WorkspacesKept, o, "%s was lost without a request to delete it", uid)
		}
	}
}

// checkNotReturned checks that removed Workspaces do not reappear, and do not exist beside their
// successor.
func (c *workspaceCheck) checkNotReturned(seen Workspace, exists bool, at int64, where fmt.Stringer) {
	if l := c.records[seen.UID]; exists && l != nil && l.removed != 0 && at > l.removed {
		c.report(Removed, where, "%s reappeared, or exists beside another one with its name", seen.UID)
	}
}

// use checks that a logical cluster can be used when its Workspace is Ready, and is deleted with
// it. If the Workspace was deleted before it was Ready, a delayed request may create its logical
// cluster later. The garbage collector then deletes it, which the inventory shows.
func (c *workspaceCheck) use(u *WorkspaceUse) {
	l := c.records[u.UID]
	if l == nil {
		return
	}
	kept := l.deleteRequested == 0 || l.deleteRequested > u.End
	switch {
	case u.In == u.Cluster && l.ready && l.removed != 0 && l.removed < u.Start:
		c.report(Removed, u, "status %d, although the workspace was deleted", u.Code)
	case u.In != "" && u.In != u.Cluster && kept:
		c.report(OneLogicalCluster, u, "logical cluster %s responded", u.In)
	case u.Writes && (u.Code == 403 || u.Code == 404) && kept:
		c.report(ReadyIsUsable, u, "status %d, although the workspace was Ready", u.Code)
	}
}

// inventory checks that each Workspace has one logical cluster at the end, and vice versa.
func (c *workspaceCheck) inventory(i *Inventory) {
	const end = text("final inventory")
	existing := map[string]Workspace{}
	for _, w := range i.Workspaces {
		existing[w.UID] = w
		c.checkNotReturned(w, true, i.At, end)
		has := 0
		for _, lc := range i.Clusters {
			if lc.Owner == w.UID && lc.Name == w.Cluster {
				has++
			}
		}
		if has != 1 || !w.Ready {
			c.report(OneLogicalCluster, end, "workspace %s (%s) has %d logical clusters %s, ready: %t", w.Name, w.UID, has, w.Cluster, w.Ready)
		}
		if l := c.records[w.UID]; l != nil && l.Cluster != "" && l.Cluster != w.Cluster {
			c.report(OneLogicalCluster, end, "workspace %s has logical cluster %s, previously %s", w.Name, w.Cluster, l.Cluster)
		}
	}
	for uid, l := range c.records {
		if _, found := existing[uid]; !found && l.seen != 0 && l.deleteRequested == 0 {
			c.report(WorkspacesKept, end, "%s (%s) was lost without a request to delete it", l.Name, uid)
		}
	}
	for n, lc := range i.Clusters {
		if w, found := existing[lc.Owner]; !found || w.Cluster != lc.Name {
			c.report(Removed, end, "logical cluster %s on %s has no workspace", lc.Name, lc.Shard)
		}
		if slices.ContainsFunc(i.Clusters[:n], func(other LogicalCluster) bool { return other.Name == lc.Name }) {
			c.report(OneLogicalCluster, end, "logical cluster %s exists twice, also on %s", lc.Name, lc.Shard)
		}
	}
}
