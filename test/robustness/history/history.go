// Package history contains the records of clients, and checks them: pure functions from a History
// to the Violations of the properties of lists and watches. It does not depend on servers.
//
//	Ops, Sessions, Lists, Probes ─► truth: every state of every object,
//	                                merged from all observers
//	                                     │
//	                   compared with each stream and list ─► Violations
package history

import "fmt"

// Domain is a resource of a server. Its resource versions are comparable.
type Domain struct{ Server, Resource string }

// Key names an object within a Domain. Shard is set on the cache server only.
type Key struct{ Shard, Cluster, Namespace, Name string }

// State is an object at a resource version.
type State struct {
	RV  uint64
	UID string
	// Value is unique to the write that stored it. It is empty for objects that the test did not
	// write.
	Value string
	// Label is the value of the label that selectors use.
	Label string
	// Deleted is true if the object was deleted at RV. The other fields are those of the last
	// state.
	Deleted bool
}

// sameContent compares the fields that clients observe.
func (s State) sameContent(o State) bool {
	return s.UID == o.UID && s.Value == o.Value && s.Label == o.Label
}

// Object is a state of the object with a key.
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

// Event is a watch event. A bookmark has only a resource version.
type Event struct {
	Type   string
	Object Object
	// InitialEnd is true for the bookmark that ends the initial events.
	InitialEnd bool
	// Time is when the event was received. It is set for virtual workspaces only.
	Time int64 `json:",omitempty"`
}

// Session is one watch request.
type Session struct {
	ID     int
	Name   string
	Domain Domain
	Scope  Scope
	// Streaming sessions start with initial events, others start at From.
	Streaming bool
	From      uint64
	// Resumed is true if the session continues another one.
	Resumed bool
	// VirtualWorkspace is true if the request used the virtual workspace of an export. Claims then
	// determine its content. Sessions with the same name are consecutive sessions of one client.
	VirtualWorkspace bool `json:",omitempty"`
	// Start is when the request was sent. It is set for virtual workspaces only.
	Start  int64 `json:",omitempty"`
	Events []Event
	// Through is a resource version. The session had time to receive all events up to it.
	// Values lower than the version of the last event have no meaning.
	Through uint64
}

func (s *Session) String() string { return fmt.Sprintf("session %d (%s)", s.ID, s.Name) }

// Match specifies which state a list requests.
type Match string

// The kinds of matches.
const (
	Consistent   Match = "consistent"
	Any          Match = "any"
	NotOlderThan Match = "NotOlderThan"
	Exact        Match = "Exact"
)

// Page is one response of a list.
type Page struct {
	RV        uint64
	More      bool
	Remaining bool
	Items     int
}

// List is a complete list of one or more pages.
type List struct {
	ID     int
	Name   string
	Domain Domain
	Scope  Scope
	// Start is when the first request was sent, and End when the last response was received.
	Start, End int64
	Match      Match
	Wanted     uint64
	Pages      []Page
	Items      []Object
	// VirtualWorkspace is true if the request used the virtual workspace of an export. Client is the
	// name of the sessions that continue from the list, if any.
	VirtualWorkspace bool   `json:",omitempty"`
	Client           string `json:",omitempty"`
	// Group identifies lists of the same Domain at one resource version: a complete list, and lists
	// of its parts. 0 is no group.
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

// Kind is the kind of an operation.
type Kind string

// The kinds of operations.
const (
	Create Kind = "create"
	Update Kind = "update"
	Delete Kind = "delete"
	Get    Kind = "get"
)

// Outcome is the result of an operation.
type Outcome string

// The outcomes. An operation with an Unknown outcome may or may not have taken effect, then or
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
	// Upsert is true if an update creates a missing object regardless of Expected, e.g. of Leases.
	Upsert bool
	// ControllerWrites is true if a controller also writes the object without changing its value.
	// Updates may then conflict although no client wrote.
	ControllerWrites bool `json:",omitempty"`
	// Value is the value that a create or update writes.
	Value      string
	Start, End int64
	Outcome    Outcome
	// Result is the state that a create, update or get returned.
	Result State
}

// ErrorResponse is an error message that a client received for a request to a logical cluster.
type ErrorResponse struct{ Cluster, Text string }

// Probe is an attempt to read data of another logical cluster, and the status code of the response.
// If Want is set, it is instead a request whose response must have this code.
type Probe struct {
	Name       string
	Code, Want int
}

// History contains the records of all clients.
type History struct {
	Ops      []*Op
	Sessions []*Session
	Lists    []*List
	// Merged and MergedLists are watches and lists across several servers.
	Merged      []*MergedSession
	MergedLists []*MergedList
	Errors      []ErrorResponse
	Probes      []Probe
	// Claims are permission claims in the order of their changes. Replicas is true if several
	// processes served the requests.
	Claims   []*Claim
	Replicas bool
	// Definitions and Uses are requests for CustomResourceDefinitions and for their resources.
	Definitions []*Definition
	Uses        []*Use
	// WorkspaceOps and WorkspaceUses are requests for Workspaces and their content. Inventory is
	// the state at the end.
	WorkspaceOps  []*WorkspaceOp
	WorkspaceUses []*WorkspaceUse
	Inventory     *Inventory
}

// Property is a property of docs/listwatch.md, with the same number, or one of the additional ones.
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

// Violation is a part of a history that violates a property.
type Violation struct {
	Property Property
	Where    string
	What     string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Property, v.Where, v.What) }

// reporter collects violations.
type reporter struct{ violations []Violation }

func (r *reporter) report(p Property, where fmt.Stringer, format string, args ...any) {
	r.violations = append(r.violations, Violation{p, where.String(), fmt.Sprintf(format, args...)})
}

// text is a fmt.Stringer for violations that do not concern a single request.
type text string

func (t text) String() string { return string(t) }

// Check returns all violations of the properties.
func Check(h *History) []Violation {
	r := &reporter{}
	checkMerged(r, h)
	h = splitByServer(h)
	t := newTruth(r, h)
	checkDeletes(r, h, t)
	for _, s := range h.Sessions {
		if !s.VirtualWorkspace {
			checkSession(r, s, t)
		}
	}
	checkLists(r, h, t)
	checkClaims(r, h, t)
	checkIsolation(r, h)
	checkDefinitions(r, h)
	checkWorkspaces(r, h)
	checkLinearizable(r, h.Ops)
	return r.violations
}
