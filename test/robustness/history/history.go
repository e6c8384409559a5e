package history

import "fmt"

// Domain is one space of resource versions and objects: a resource of a server.
type Domain struct{ Server, Resource string }

// Key names an object within a Domain. Shard is set on the cache server only.
type Key struct{ Shard, Cluster, Namespace, Name string }

// State is an object at a resource version.
type State struct {
	RV  uint64
	UID string
	// Value is unique to the write that made it; empty for objects of others.
	Value string
	// Label is the value of the label that selectors ask for.
	Label string
	// Deleted says that the object was deleted at RV. The rest is as it was.
	Deleted bool
}

// sameContent compares what clients see of an object.
func (s State) sameContent(o State) bool {
	return s.UID == o.UID && s.Value == o.Value && s.Label == o.Label
}

// Object is a state of the object of a key.
type Object struct {
	Key   Key
	State State
}

// The types of events.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Bookmark = "BOOKMARK"
)

// Event is an event of a watch. A bookmark has a resource version only.
type Event struct {
	Type   string
	Object Object
	// InitialEnd marks the bookmark that ends the initial events.
	InitialEnd bool
	// Time is when it came, where that matters: in views.
	Time int64 `json:",omitempty"`
}

// Session is one watch request.
type Session struct {
	ID     int
	Name   string
	Domain Domain
	Scope  Scope
	// Streaming says that the session started with initial events; otherwise
	// it started at From.
	Streaming bool
	From      uint64
	// Resumed says that the session continues another one.
	Resumed bool
	// View says that it was through the view of an export: what it shows depends on
	// Claims, too. All sessions of a name are one client's, one after the other.
	View bool `json:",omitempty"`
	// Start is when it was asked for, where that matters: in views.
	Start  int64 `json:",omitempty"`
	Events []Event
	// Through is the resource version up to which the session had time to see
	// everything; where it is lower than that of the last event, it says nothing.
	Through uint64
}

func (s *Session) String() string { return fmt.Sprintf("session %d (%s)", s.ID, s.Name) }

// Match says which state a list asks for.
type Match string

// The ways to ask for a list.
const (
	Consistent   Match = "consistent"
	Any          Match = "any"
	NotOlderThan Match = "NotOlderThan"
	Exact        Match = "Exact"
)

// Page is one answer of a list.
type Page struct {
	RV        uint64
	More      bool
	Remaining bool
	Items     int
}

// List is a whole list, of one page or many.
type List struct {
	ID     int
	Name   string
	Domain Domain
	Scope  Scope
	// Start and End are when the first request was sent and the last answer
	// came.
	Start, End int64
	Match      Match
	Wanted     uint64
	Pages      []Page
	Items      []Object
	// View says that it was made through the view of an export, and Client for which
	// sessions, if any.
	View   bool   `json:",omitempty"`
	Client string `json:",omitempty"`
	// Group joins lists of the same Domain at one resource version: one of
	// everything, and parts that make it up. 0 is no group.
	Group int
}

// RV is the resource version of the list.
func (l *List) RV() uint64 {
	if len(l.Pages) == 0 {
		return 0
	}
	return l.Pages[0].RV
}

func (l *List) String() string { return fmt.Sprintf("list %d (%s)", l.ID, l.Name) }

// Kind is what an operation does.
type Kind string

// The kinds of operations.
const (
	Create Kind = "create"
	Update Kind = "update"
	Delete Kind = "delete"
	Get    Kind = "get"
)

// Outcome is what came of an operation.
type Outcome string

// The outcomes. An Unknown operation may have taken effect or not, then or
// later.
const (
	OK       Outcome = "ok"
	NotFound Outcome = "not found"
	Exists   Outcome = "exists"
	Conflict Outcome = "conflict"
	Unknown  Outcome = "unknown"
)

// Op is an operation on one object.
type Op struct {
	ID, Client int
	Domain     Domain
	Key        Key
	Kind       Kind
	// Expected is the state that an update or delete requires.
	Expected State
	// Upsert says that an update makes the object where there is none, whatever it
	// expects, as those of Leases do.
	Upsert bool
	// Minded says that a controller writes the object, too, without changing its value:
	// a state that is expected may be gone at any time.
	Minded bool `json:",omitempty"`
	// Value is what a create or update writes.
	Value      string
	Start, End int64
	Outcome    Outcome
	// Result is what a create, update or get answered.
	Result State
}

// Said is a text that a client got in an answer about one logical cluster.
type Said struct{ Cluster, Text string }

// Probe is an attempt to read outside of one's own logical cluster, and the
// status code that it was answered with. One with another Want is no such
// attempt, but a request that has to be answered so.
type Probe struct {
	Name       string
	Code, Want int
}

// History is all that was seen.
type History struct {
	Ops      []*Op
	Sessions []*Session
	Lists    []*List
	// Merged and MergedLists are watches and lists of several servers at once.
	Merged      []*MergedSession
	MergedLists []*MergedList
	Errors      []Said
	Probes      []Probe
	// Claims are what views showed, in order, and Replicas says that several processes
	// did.
	Claims   []*Claim
	Replicas bool
	// Definitions and Uses are of custom resources whose definitions come and go.
	Definitions []*Definition
	Uses        []*Use
	// WorkspaceOps and WorkspaceUses are of Workspaces that come and go, and Inventory is what
	// there is in the end.
	WorkspaceOps  []*WorkspaceOp
	WorkspaceUses []*WorkspaceUse
	Inventory     *Inventory
}

// Property is a number of the list in docs/listwatch.md, or one of those after it.
type Property int

// The properties.
const (
	Ordered Property = iota + 1
	Unique
	Reliable
	Resumable
	Bookmarkable
	Transitions
	ListsAgree
	ReadsOwnWrites
	ShardsAddUp
	Isolated
	Linearizable
	DefinitionsServed
	NamesFree
	Claimed
	Merged
	WorkspacesKept
	OneLogicalCluster
	ReadyIsUsable
	Removed
)

var propertyNames = [...]string{"", "ordered", "unique", "reliable", "resumable", "bookmarkable", "transitions",
	"lists agree", "consistent lists", "shards add up", "isolated", "linearizable", "definitions served", "names free", "as claimed", "merged",
	"workspaces kept", "one logical cluster", "ready is usable", "removed"}

func (p Property) String() string { return propertyNames[p] }

// Violation is where a history breaks a property.
type Violation struct {
	Property Property
	Where    string
	What     string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Property, v.Where, v.What) }

// Check returns where the history breaks any property.
func Check(h *History) []Violation {
	violations := checkMerged(h)
	h = parted(h)
	t, contradictions := newTruth(h)
	violations = append(violations, contradictions...)
	violations = append(violations, checkDeletes(h, t)...)
	for _, s := range h.Sessions {
		if !s.View {
			violations = append(violations, checkSession(s, t)...)
		}
	}
	violations = append(violations, checkLists(h, t)...)
	violations = append(violations, checkViews(h, t)...)
	violations = append(violations, checkIsolation(h)...)
	violations = append(violations, checkDefinitions(h)...)
	violations = append(violations, checkWorkspaces(h)...)
	return append(violations, checkLinearizable(h.Ops)...)
}
