package history

import (
	"fmt"
	"maps"
	"slices"
)

// Versions is a resource version of several servers: the position of each of them.
type Versions map[string]uint64

// Item is an object in a merged response, its server, and its version.
type Item struct {
	Object
	Server string
	At     Versions
}

// MergedSession is a watch of a resource on several servers. Bookmarks have no server.
type MergedSession struct {
	ID             int
	Name, Resource string
	Scope          Scope
	Streaming      bool
	From           Versions
	Resumed        bool
	Events         []MergedEvent
	Through        Versions
}

// MergedEvent is an event of a MergedSession.
type MergedEvent struct {
	Type       string
	InitialEnd bool
	Item
}

// MergedList is a list of a resource on several servers.
type MergedList struct {
	ID             int
	Name, Resource string
	Scope          Scope
	Start, End     int64
	// Pages are the versions of the pages.
	Pages []Versions
	Items []Item
}

func (s *MergedSession) String() string { return fmt.Sprintf("merged session %d (%s)", s.ID, s.Name) }

func (l *MergedList) String() string { return fmt.Sprintf("merged list %d (%s)", l.ID, l.Name) }

// splitByServer returns the history with the merged responses as separate sessions and lists of
// each server, so that all properties are checked for them as well.
func splitByServer(h *History) *History {
	all := *h
	all.Sessions, all.Lists = slices.Clone(h.Sessions), slices.Clone(h.Lists)
	for _, s := range h.Merged {
		all.Sessions = append(all.Sessions, s.split()...)
	}
	for _, l := range h.MergedLists {
		all.Lists = append(all.Lists, l.split()...)
	}
	return &all
}

// split returns a session for each server.
func (s *MergedSession) split() []*Session {
	servers := Versions{}
	maps.Copy(servers, s.From)
	for _, e := range s.Events {
		maps.Copy(servers, e.At)
	}
	scope := s.Scope
	scope.withoutSystem = true // as the front-proxy does
	var parts []*Session
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		part := &Session{
			ID: s.ID, Name: s.Name + ", of " + server, Domain: Domain{server, s.Resource}, Scope: scope,
			Streaming: s.Streaming, From: s.From[server], Resumed: s.Resumed, Through: s.Through[server],
		}
		for _, e := range s.Events {
			switch rv, ok := e.At[server]; {
			case e.Type == Bookmark && ok:
				part.Events = append(part.Events, Event{Type: Bookmark, InitialEnd: e.InitialEnd, Object: Object{State: State{RV: rv}}})
			case e.Server == server:
				part.Events = append(part.Events, Event{Type: e.Type, Object: e.Object})
			}
		}
		parts = append(parts, part)
	}
	return parts
}

// split returns a list for each server.
func (l *MergedList) split() []*List {
	if len(l.Pages) == 0 {
		return nil
	}
	scope := l.Scope
	scope.withoutSystem = true
	var parts []*List
	for _, server := range slices.Sorted(maps.Keys(l.Pages[0])) {
		part := &List{
			ID: l.ID, Name: l.Name + ", of " + server, Domain: Domain{server, l.Resource}, Scope: scope,
			Start: l.Start, End: l.End, Match: Consistent, Pages: []Page{{RV: l.Pages[0][server]}},
		}
		for _, item := range l.Items {
			if item.Server == server {
				part.Items = append(part.Items, item.Object)
			}
		}
		part.Pages[0].Items = len(part.Items)
		parts = append(parts, part)
	}
	return parts
}

// checkMerged checks the properties of versions of several servers.
func checkMerged(r *reporter, h *History) {
	for _, s := range h.Merged {
		r.mergedSession(s)
	}
	for _, l := range h.MergedLists {
		r.mergedList(l)
	}
}

// mergedSession checks that a client can resume from any version of a session without missing events.
// Each event advances the version of its server only. Versions of initial events contain a server only
// after all its initial events.
func (r *reporter) mergedSession(s *MergedSession) {
	now, initial := maps.Clone(s.From), s.Streaming
	whole := Versions{} // the servers with complete initial events
	for _, e := range s.Events {
		switch {
		case e.InitialEnd:
			now, initial = maps.Clone(e.At), false
			r.forward(s, whole, e, "")
		case initial && e.Type != Bookmark:
			if _, over := whole[e.Server]; over {
				r.report(Merged, s, "%s of %v of %s is an initial event, although an earlier version marks them as complete", e.Type, e.Key, e.Server)
			}
			for server, rv := range e.At {
				if server != e.Server {
					whole[server] = rv
				}
			}
		case !initial:
			r.forward(s, now, e, e.Server)
			now = e.At
		}
	}
}

// forward checks that an event advances the version of one server only. A bookmark has no server, and
// may advance all.
func (r *reporter) forward(where fmt.Stringer, before Versions, e MergedEvent, server string) {
	for s, rv := range before {
		if e.At[s] < rv || server != "" && s != server && e.At[s] != rv {
			r.report(Merged, where, "after %v, the version of %s of %v of %q is %v", before, e.Type, e.Key, e.Server, e.At)
		}
	}
}

// mergedList checks that all pages have one version, and that no item has a later one. A watch from the
// version of any item then misses no event.
func (r *reporter) mergedList(l *MergedList) {
	for i, page := range l.Pages {
		if !maps.Equal(page, l.Pages[0]) {
			r.report(Merged, l, "page %d is at %v, the first one at %v", i+1, page, l.Pages[0])
		}
	}
	for _, item := range l.Items {
		for server, rv := range l.Pages[0] {
			if item.At[server] > rv {
				r.report(Merged, l, "%v of %s has the version %v in a list at %v", item.Key, item.Server, item.At, l.Pages[0])
			}
		}
	}
}
