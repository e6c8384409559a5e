package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// truth contains every state of every object that any client observed.
type truth struct {
	states map[Domain]map[Key][]State
	// vanished contains the UIDs of objects without an observed deletion, although their deletion or
	// that of their Workspace was requested. They may have been deleted at any time after their last state.
	vanished map[string]bool
}

// newTruth merges the observations of all clients, and reports contradictions.
func newTruth(r *reporter, h *History) *truth {
	t := &truth{states: map[Domain]map[Key][]State{}, vanished: map[string]bool{}}
	found := map[Domain]map[Key]map[uint64]State{}
	add := func(where fmt.Stringer, d Domain, o Object) {
		if found[d] == nil {
			found[d] = map[Key]map[uint64]State{}
		}
		if found[d][o.Key] == nil {
			found[d][o.Key] = map[uint64]State{}
		}
		if before, ok := found[d][o.Key][o.State.RV]; ok && (before.Deleted != o.State.Deleted || !before.sameContent(o.State)) {
			r.report(Transitions, where, "%v was %+v for another client, and %+v for this one", o.Key, before, o.State)
			return
		}
		found[d][o.Key][o.State.RV] = o.State
	}
	for _, op := range h.Ops {
		if op.Outcome == OK && op.Kind != Delete {
			add(op, op.Domain, Object{op.Key, op.Result})
		}
	}
	for _, l := range h.Lists {
		for _, o := range l.Items {
			add(l, l.Domain, o)
		}
	}
	for _, s := range h.Sessions {
		for _, e := range s.Events {
			switch {
			case e.Type == Added || e.Type == Modified:
				add(s, s.Domain, e.Object)
			case e.Type == Deleted && s.Scope.unfiltered() && !s.VirtualWorkspace:
				o := e.Object
				o.State.Deleted = true
				add(s, s.Domain, o)
			}
		}
	}
	for d, keys := range found {
		t.states[d] = map[Key][]State{}
		for k, byRV := range keys {
			t.states[d][k] = slices.SortedFunc(maps.Values(byRV), func(a, b State) int { return cmp.Compare(a.RV, b.RV) })
		}
	}
	t.findVanished(h)
	return t
}

func (t *truth) findVanished(h *History) {
	seen := map[string]bool{}
	for _, keys := range t.states {
		for _, states := range keys {
			for _, s := range states {
				if s.Deleted {
					seen[s.UID] = true
				}
			}
		}
	}
	for _, op := range h.Ops {
		if op.Kind == Delete && (op.Outcome == OK || op.Outcome == Unknown) && !seen[op.Expected.UID] {
			t.vanished[op.Expected.UID] = true
		}
	}
	removed := removedClusters(h)
	for _, keys := range t.states {
		for k, states := range keys {
			for _, s := range states {
				if removed[k.Cluster] && !seen[s.UID] {
					t.vanished[s.UID] = true
				}
			}
		}
	}
}

// removedClusters returns the logical clusters of Workspaces that a client tried to delete, because
// their content is deleted with them.
func removedClusters(h *History) map[string]bool {
	deleted := map[string]bool{}
	for _, o := range h.WorkspaceOps {
		if o.Kind == Delete {
			deleted[o.Seen.UID] = true
		}
	}
	clusters := map[string]bool{}
	for _, o := range h.WorkspaceOps {
		if deleted[o.Seen.UID] && o.Seen.Cluster != "" {
			clusters[o.Seen.Cluster] = true
		}
	}
	return clusters
}

// observed reports whether another client observed or wrote the object at that version.
func (t *truth) observed(d Domain, k Key, rv uint64) bool {
	s, ok := t.last(d, k, rv)
	return ok && s.RV == rv
}

// last returns the last state of the object at or before rv.
func (t *truth) last(d Domain, k Key, rv uint64) (State, bool) {
	states := t.states[d][k]
	i, _ := slices.BinarySearchFunc(states, rv+1, func(s State, rv uint64) int { return cmp.Compare(s.RV, rv) })
	if i == 0 {
		return State{}, false
	}
	return states[i-1], true
}

// at returns the objects in a scope at a resource version.
func (t *truth) at(d Domain, scope selection, rv uint64) map[Key]State {
	all := map[Key]State{}
	for k := range t.states[d] {
		if s, ok := t.last(d, k, rv); ok && scope.Selects(k, s) {
			all[k] = s
		}
	}
	return all
}

// between returns the events that a watch of the scope must send for changes after from, up to to.
func (t *truth) between(d Domain, scope selection, from, to uint64) []Event {
	var events []Event
	for k, states := range t.states[d] {
		if !scope.mayContain(k) {
			continue
		}
		var before State
		exists := false
		for _, s := range states {
			if s.RV > to {
				break
			}
			if exists && before.UID != s.UID && !before.Deleted {
				exists = false // its deletion was not observed
			}
			if s.RV > from {
				if e, ok := transition(scope, k, before, exists, s); ok {
					events = append(events, e)
				}
			}
			before, exists = s, true
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.Object.State.RV, b.Object.State.RV) })
	return events
}

// transition returns the event for an object that enters, changes in or leaves a scope, if any.
func transition(scope selection, k Key, before State, exists bool, now State) (Event, bool) {
	was := exists && scope.Selects(k, before)
	is := scope.Selects(k, now)
	switch {
	case is && was:
		return Event{Type: Modified, Object: Object{k, now}}, true
	case is:
		return Event{Type: Added, Object: Object{k, now}}, true
	case was:
		before.RV = now.RV
		return Event{Type: Deleted, Object: Object{k, before}}, true
	default:
		return Event{}, false
	}
}

func (op *Op) String() string {
	return fmt.Sprintf("%s %d of %s/%s by client %d", op.Kind, op.ID, op.Key.Cluster, op.Key.Name, op.Client)
}
