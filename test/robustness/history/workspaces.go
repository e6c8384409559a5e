package history

import (
	"fmt"
	"slices"
)

// WorkspaceOp is a request about one Workspace.
type WorkspaceOp struct {
	ID int
	// Parent is the logical cluster that has the Workspace, and Name its name there.
	Parent, Name string
	Kind         Kind
	Start, End   int64
	// Outcome is OK, NotFound, Exists, Conflict or Unknown.
	Outcome Outcome
	// Seen is what an answer that is OK shows. A deletion is for the UID of Seen alone, whatever
	// comes of it.
	Seen Workspace
}

// Workspace is what is seen of one.
type Workspace struct {
	Parent, Name, UID string
	// Cluster is the logical cluster that it has, if it is known by now.
	Cluster            string
	Ready, Terminating bool
}

func (o *WorkspaceOp) String() string {
	return fmt.Sprintf("%s %d of workspace %s in %s", o.Kind, o.ID, o.Name, o.Parent)
}

// WorkspaceUse is a request into the logical cluster that a Workspace has.
type WorkspaceUse struct {
	ID           int
	UID, Cluster string
	Start, End   int64
	Code         int
	// Writes says that it writes into the namespace default of a Workspace that was seen Ready,
	// by its path, which another one may have by now, and In which logical cluster an answer
	// is of.
	Writes bool
	In     string
}

func (u *WorkspaceUse) String() string {
	return fmt.Sprintf("use %d of logical cluster %s", u.ID, u.Cluster)
}

// LogicalCluster is one that has a Workspace as owner.
type LogicalCluster struct {
	Shard, Name string
	// Owner is the UID of the Workspace.
	Owner string
}

// Inventory is all that there is of both when all is quiet.
type Inventory struct {
	At         int64
	Workspaces []Workspace
	Clusters   []LogicalCluster
}

// life is what all answers tell of one Workspace, by its UID.
type life struct {
	Workspace
	// seen is when it was first known to exist: the end of the first answer that has it.
	seen int64
	// ready is whether it was ever seen Ready.
	ready bool
	// removing is when somebody first sent a request to delete it, and gone when it was first
	// known not to exist any more. 0 is never.
	removing, gone int64
}

// workspaceCheck holds what Workspaces promise.
type workspaceCheck struct {
	lives      map[string]*life
	violations []Violation
}

// checkWorkspaces holds that Workspaces that were acknowledged are kept until somebody deletes
// them, have one logical cluster each, can be used once they are Ready, and are gone with it when
// they are deleted.
func checkWorkspaces(h *History) []Violation {
	c := &workspaceCheck{lives: map[string]*life{}}
	for _, o := range h.WorkspaceOps {
		c.note(o)
	}
	for _, o := range h.WorkspaceOps {
		c.absent(o)
	}
	for _, o := range h.WorkspaceOps {
		c.returned(o.Seen, o.Outcome == OK, o.Start, o)
	}
	for _, u := range h.WorkspaceUses {
		c.use(u)
	}
	if h.Inventory != nil {
		c.inventory(h.Inventory)
	}
	return c.violations
}

func (c *workspaceCheck) report(p Property, where fmt.Stringer, format string, args ...any) {
	c.violations = append(c.violations, Violation{p, where.String(), fmt.Sprintf(format, args...)})
}

// note takes in what an answer shows to exist.
func (c *workspaceCheck) note(o *WorkspaceOp) {
	if o.Seen.UID == "" {
		return
	}
	l := c.lives[o.Seen.UID]
	if l == nil {
		l = &life{Workspace: o.Seen}
		c.lives[o.Seen.UID] = l
	}
	if o.Kind == Delete && (l.removing == 0 || o.Start < l.removing) {
		l.removing = o.Start
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
		c.report(OneLogicalCluster, o, "it has %s, and had %s before", o.Seen.Cluster, l.Cluster)
	}
}

// absent takes in which Workspaces an answer shows not to exist: none of the name, or all but one.
func (c *workspaceCheck) absent(o *WorkspaceOp) {
	if o.Outcome != OK && (o.Outcome != NotFound || o.Kind != Get) {
		return
	}
	for uid, l := range c.lives {
		if l.Parent != o.Parent || l.Name != o.Name || uid == o.Seen.UID || l.seen == 0 || l.seen > o.Start {
			continue
		}
		if l.gone == 0 || o.End < l.gone {
			l.gone = o.End
		}
		if l.removing == 0 || l.removing > o.End {
			c.report(WorkspacesKept, o, "%s is lost, which nobody had deleted", uid)
		}
	}
}

// returned holds that what was gone does not come back, nor is there beside what has taken its
// place.
func (c *workspaceCheck) returned(seen Workspace, exists bool, at int64, where fmt.Stringer) {
	if l := c.lives[seen.UID]; exists && l != nil && l.gone != 0 && at > l.gone {
		c.report(Removed, where, "%s is there again, or still beside another one of its name", seen.UID)
	}
}

// use holds that a logical cluster can be used when its Workspace is Ready, and is gone when that
// is gone. Of one that never was, the logical cluster may come when it has gone already, by a request
// that its deletion does not wait for; it is found, and must be gone in the end.
func (c *workspaceCheck) use(u *WorkspaceUse) {
	l := c.lives[u.UID]
	if l == nil {
		return
	}
	kept := l.removing == 0 || l.removing > u.End
	switch {
	case u.In == u.Cluster && l.ready && l.gone != 0 && l.gone < u.Start:
		c.report(Removed, u, "it was answered %d, and its workspace was gone", u.Code)
	case u.In != "" && u.In != u.Cluster && kept:
		c.report(OneLogicalCluster, u, "it was answered by %s", u.In)
	case u.Writes && (u.Code == 403 || u.Code == 404) && kept:
		c.report(ReadyIsUsable, u, "it was answered %d, and its workspace was Ready", u.Code)
	}
}

// where names the inventory in violations.
type where string

func (w where) String() string { return string(w) }

// inventory holds that each Workspace has one logical cluster in the end, and the other way round.
func (c *workspaceCheck) inventory(i *Inventory) {
	const end = where("in the end")
	there := map[string]Workspace{}
	for _, w := range i.Workspaces {
		there[w.UID] = w
		c.returned(w, true, i.At, end)
		has := 0
		for _, lc := range i.Clusters {
			if lc.Owner == w.UID && lc.Name == w.Cluster {
				has++
			}
		}
		if has != 1 || !w.Ready {
			c.report(OneLogicalCluster, end, "workspace %s (%s) has %d logical clusters %s, ready: %t", w.Name, w.UID, has, w.Cluster, w.Ready)
		}
		if l := c.lives[w.UID]; l != nil && l.Cluster != "" && l.Cluster != w.Cluster {
			c.report(OneLogicalCluster, end, "workspace %s has %s, and had %s before", w.Name, w.Cluster, l.Cluster)
		}
	}
	for uid, l := range c.lives {
		if _, found := there[uid]; !found && l.seen != 0 && l.removing == 0 {
			c.report(WorkspacesKept, end, "%s (%s) is lost, which nobody had deleted", l.Name, uid)
		}
	}
	for n, lc := range i.Clusters {
		if w, found := there[lc.Owner]; !found || w.Cluster != lc.Name {
			c.report(Removed, end, "logical cluster %s on %s has no workspace", lc.Name, lc.Shard)
		}
		if slices.ContainsFunc(i.Clusters[:n], func(other LogicalCluster) bool { return other.Name == lc.Name }) {
			c.report(OneLogicalCluster, end, "logical cluster %s is there twice, also on %s", lc.Name, lc.Shard)
		}
	}
}
